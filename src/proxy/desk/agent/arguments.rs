//! The arguments of a call, as a model wrote them: numbers as text and the other way round are taken for what they mean.

use serde_json::{Map, Value};

use crate::proxy::desk::curate::Chosen;
use crate::proxy::state::steer::When;
use crate::recall::Span;

/// The longest text that is taken where a short one is meant (bytes).
const SHORT: usize = 4_000;

/// The arguments of a call.
pub(super) struct Arguments<'a>(pub(super) &'a Map<String, Value>);

impl Arguments<'_> {
    pub(super) fn text(&self, key: &str) -> Result<Option<String>, String> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
            Some(Value::String(text)) if text.len() <= SHORT => Ok(Some(text.trim().to_owned())),
            Some(Value::Number(n)) => Ok(Some(n.to_string())),
            Some(_) => Err(format!("`{key}` must be a short text")),
        }
    }

    pub(super) fn whole(&self, key: &str) -> Result<Option<i64>, String> {
        let number = match self.0.get(key) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Number(n)) => n.as_f64(),
            Some(Value::String(s)) => s.trim().parse().ok(),
            Some(_) => None,
        };
        let number = number.filter(|n| n.is_finite() && n.fract() == 0.0);
        number.map(|n| Some(n as i64)).ok_or_else(|| format!("`{key}` must be a whole number"))
    }

    pub(super) fn span(&self) -> Result<Span, String> {
        Ok(Span { offset: self.whole("offset")?, limit: self.whole("limit")? })
    }

    /// A text of any length, as it was written.
    pub(super) fn words(&self, key: &str) -> Result<Option<String>, String> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(format!("`{key}` must be a text")),
        }
    }

    /// A number that counts something.
    pub(super) fn count(&self, key: &str) -> Result<Option<usize>, String> {
        let number = self.whole(key)?;
        let counted = number.map(usize::try_from).transpose();
        counted.map_err(|_| format!("`{key}` must be a whole number from 0 on"))
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool, String> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(set)) => Ok(*set),
            Some(Value::String(text)) if text == "true" || text == "false" => Ok(text == "true"),
            Some(_) => Err(format!("`{key}` must be true or false")),
        }
    }

    pub(super) fn when(&self) -> Result<When, String> {
        match self.0.get("when") {
            None | Some(Value::Null) => Ok(When::Now),
            Some(when) => {
                serde_json::from_value(when.clone()).map_err(|_| "`when` must be \"now\" or \"next_break\"".to_owned())
            }
        }
    }

    /// Turns by their number, and steps of them such as `"4.2"`.
    pub(super) fn turns(&self) -> Result<Vec<Chosen>, String> {
        let wrong = || "`turns` must be a list of turns and steps, such as [3, \"4.2\"]".to_owned();
        let read = |one: &Value| match one {
            Value::String(text) => text.parse().map_err(|()| wrong()),
            Value::Number(number) => number.to_string().parse().map_err(|()| wrong()),
            _ => Err(wrong()),
        };
        self.list("turns").ok_or_else(wrong)?.iter().map(read).collect()
    }

    /// Briefs by their number.
    pub(super) fn briefs(&self) -> Result<Vec<usize>, String> {
        let wrong = || "`briefs` must be a list of numbers, such as [1]".to_owned();
        let read = |one: &Value| one.as_u64().and_then(|n| usize::try_from(n).ok()).ok_or_else(wrong);
        self.list("briefs").ok_or_else(wrong)?.iter().map(read).collect()
    }

    /// A list; `None` where something else stands there.
    fn list(&self, key: &str) -> Option<&[Value]> {
        match self.0.get(key) {
            None | Some(Value::Null) => Some(&[]),
            Some(Value::Array(all)) => Some(all),
            Some(_) => None,
        }
    }
}
