//! `tojson`, as llama.cpp spells JSON.

use minijinja::value::{Kwargs, Value as Jinja};
use minijinja::{Error, ErrorKind};
use serde_json::Value;

/// `tojson` as llama.cpp spells it: Python's `json.dumps` with `ensure_ascii=False`, and fractions of six digits.
pub(super) fn tojson(value: &Jinja, args: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = args.get("indent").ok().flatten();
    let ascii = args.get::<Option<bool>>("ensure_ascii").ok().flatten().unwrap_or(false);
    let sort = args.get::<Option<bool>>("sort_keys").ok().flatten().unwrap_or(false);
    let separators: Option<Vec<String>> = args.get("separators").ok().flatten();
    let mut value = serde_json::to_value(value)
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("no JSON can be made of it: {e}")))?;
    if sort {
        value.sort_all_objects();
    }
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.as_str(), key.as_str()),
        _ if indent.is_some() => (",", ": "),
        _ => (", ", ": "),
    };
    let mut out = String::new();
    Dumps { indent, ascii, item, key }.write(&mut out, &value, 0);
    Ok(out)
}

struct Dumps<'a> {
    indent: Option<usize>,
    ascii: bool,
    item: &'a str,
    key: &'a str,
}

impl Dumps<'_> {
    fn write(&self, out: &mut String, value: &Value, depth: usize) {
        match value {
            Value::Array(items) if !items.is_empty() => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    self.line(out, i > 0, depth + 1);
                    self.write(out, item, depth + 1);
                }
                self.line(out, false, depth);
                out.push(']');
            }
            Value::Object(map) if !map.is_empty() => {
                out.push('{');
                for (i, (key, item)) in map.iter().enumerate() {
                    self.line(out, i > 0, depth + 1);
                    self.string(out, key);
                    out.push_str(self.key);
                    self.write(out, item, depth + 1);
                }
                self.line(out, false, depth);
                out.push('}');
            }
            Value::String(text) => self.string(out, text),
            Value::Number(n) if n.is_f64() => out.push_str(&six_digits(n.as_f64().unwrap_or(0.0))),
            other => out.push_str(&other.to_string()),
        }
    }

    fn line(&self, out: &mut String, again: bool, depth: usize) {
        if again {
            out.push_str(self.item);
        }
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', (indent * depth).min(256)));
        }
    }

    fn string(&self, out: &mut String, text: &str) {
        let quoted = serde_json::to_string(text).unwrap_or_default();
        if !self.ascii {
            out.push_str(&quoted);
            return;
        }
        for c in quoted.chars() {
            if c.is_ascii() {
                out.push(c);
            } else {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
            }
        }
    }
}

/// A fraction as C++ streams print it (`%g`): six significant digits, the exponent only where it is shorter.
pub(super) fn six_digits(number: f64) -> String {
    if number == 0.0 || !number.is_finite() {
        return if number == 0.0 {
            if number.is_sign_negative() { "-0" } else { "0" }.into()
        } else {
            format!("{number}").to_lowercase()
        };
    }
    let scientific = format!("{number:.5e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| {
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text.to_owned() }
    };
    if (-4..6).contains(&exponent) {
        return trim(&format!("{number:.*}", usize::try_from(5 - exponent).unwrap_or(0)));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim(mantissa), exponent.abs())
}
