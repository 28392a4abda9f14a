//! Values as templates see them: JSON, with lists and maps that are spelled as Python spells them where they become text.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use minijinja::value::{Enumerator, Object, ObjectRepr, Value as Jinja, ValueKind};
use parking_lot::Mutex;
use serde_json::Value;

/// A JSON value as templates see it.
pub(super) fn value(json: &Value) -> Jinja {
    match json {
        Value::Null => Jinja::from(()),
        Value::Bool(b) => Jinja::from(*b),
        // llama.cpp keeps whole numbers in 64 bits with a sign, whatever comes of it.
        Value::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
            (Some(n), ..) => Jinja::from(n),
            (None, Some(n), _) => Jinja::from(n as i64),
            (None, None, Some(n)) => Jinja::from(n),
            _ => Jinja::from(()),
        },
        Value::String(text) => Jinja::from(text.as_str()),
        Value::Array(items) => list(items.iter().map(value).collect()),
        Value::Object(map) => {
            Jinja::from_object(Dict(map.iter().map(|(k, v)| (Arc::from(k.as_str()), value(v))).collect()))
        }
    }
}

/// A map that is spelled as Python spells it where it becomes text.
#[derive(Debug)]
struct Dict(Vec<(Arc<str>, Jinja)>);

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        let key = key.as_str()?;
        self.0.iter().find(|(k, _)| k.as_ref() == key).map(|(_, v)| v.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.iter().map(|(k, _)| Jinja::from(Arc::clone(k))).collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&repr(&Jinja::from_dyn_object(Arc::clone(self)), false))
    }
}

/// A list as templates see it.
pub(super) fn list(items: Vec<Jinja>) -> Jinja {
    Jinja::from_object(List { items, ..List::default() })
}

/// A list that is spelled as Python spells it where it becomes text.
#[derive(Debug, Default)]
struct List {
    items: Vec<Jinja>,
    calls: OnceLock<HashMap<Arc<str>, Vec<usize>>>,
    /// How many calls there are before each item.
    before: OnceLock<Vec<usize>>,
    /// The lists of those items with an attribute, by its name.
    with: Mutex<HashMap<String, Jinja>>,
}

impl List {
    /// Of messages: the places of those with a call of an id, in order; under the empty one those of calls whose id is no
    /// text, and of what is no message.
    fn calls(&self) -> &HashMap<Arc<str>, Vec<usize>> {
        self.calls.get_or_init(|| {
            let mut out: HashMap<Arc<str>, Vec<usize>> = HashMap::new();
            for (at, message) in self.items.iter().enumerate() {
                if message.kind() != ValueKind::Map {
                    out.entry(Arc::from("")).or_default().push(at);
                }
                let calls = message.get_attr("tool_calls").unwrap_or_default();
                for call in calls.try_iter().into_iter().flatten() {
                    let id = call.get_attr("id").unwrap_or_default();
                    out.entry(Arc::from(id.as_str().unwrap_or_default())).or_default().push(at);
                }
            }
            out
        })
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        self.items.get(usize::try_from(key.clone()).ok()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Iter(Box::new(Walk { list: Arc::clone(self), places: 0..self.items.len() }))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&repr(&Jinja::from_dyn_object(Arc::clone(self)), false))
    }
}

/// A walk through a list. A slice, which is one that begins further on, costs nothing for what it leaves out.
struct Walk {
    list: Arc<List>,
    places: Range<usize>,
}

impl Iterator for Walk {
    type Item = Jinja;

    fn next(&mut self) -> Option<Jinja> {
        self.nth(0)
    }

    fn nth(&mut self, n: usize) -> Option<Jinja> {
        self.places.nth(n).and_then(|at| self.list.items.get(at).cloned())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.places.size_hint()
    }
}

impl DoubleEndedIterator for Walk {
    fn next_back(&mut self) -> Option<Jinja> {
        self.places.next_back().and_then(|at| self.list.items.get(at).cloned())
    }
}

/// How many calls there are before the first message with a call of this id; none where [`first_calling`] leaves all.
pub(super) fn calls_before(value: &Jinja, id: &Jinja) -> usize {
    let Some((all, place)) = first(value, id) else { return 0 };
    *all.before
        .get_or_init(|| {
            let calls =
                |m: &Jinja| m.get_attr("tool_calls").ok().filter(Jinja::is_true).and_then(|c| c.len()).unwrap_or(0);
            let sum = |sum: &mut usize, m: &Jinja| {
                *sum += calls(m);
                Some(*sum - calls(m))
            };
            all.items.iter().scan(0, sum).collect()
        })
        .get(place)
        .unwrap_or(&0)
}

/// Of a list of messages the first with a call of this id; all of it where there is none, or where that cannot be told.
pub(super) fn first_calling(value: Jinja, id: &Jinja) -> Jinja {
    match first(&value, id) {
        Some((all, place)) => list(all.items.get(place).cloned().into_iter().collect()),
        None => value,
    }
}

/// A list of messages, and the place of the first with a call of this id.
fn first<'a>(value: &'a Jinja, id: &Jinja) -> Option<(&'a List, usize)> {
    let all = value.downcast_object_ref::<List>()?;
    let calls = all.calls();
    if calls.contains_key("") {
        return None;
    }
    Some((all, *calls.get(id.as_str()?)?.first()?))
}

/// Of a list of messages those in which an attribute is true, and what is no message; all of what is no such list.
pub(super) fn with(value: Jinja, attribute: &str) -> Jinja {
    let Some(all) = value.downcast_object_ref::<List>() else { return value };
    if let Some(known) = all.with.lock().get(attribute) {
        return known.clone();
    }
    let wanted = |m: &&Jinja| m.kind() != ValueKind::Map || m.get_attr(attribute).is_ok_and(|value| value.is_true());
    let found = list(all.items.iter().filter(wanted).cloned().collect());
    all.with.lock().insert(attribute.to_owned(), found.clone());
    found
}

/// A list backwards, from before a place if that is a number.
pub(super) fn backwards(value: Jinja, before: Option<Jinja>) -> Jinja {
    let Some(all) = value.downcast_object::<List>() else {
        return list(value.try_iter().into_iter().flatten().collect::<Vec<_>>().into_iter().rev().collect());
    };
    let before = before.filter(Jinja::is_integer).and_then(|n| i64::try_from(n).ok());
    let end = before.map_or(all.items.len(), |n| usize::try_from(n).unwrap_or(0).min(all.items.len()));
    Jinja::make_iterable(move || Walk { list: Arc::clone(&all), places: 0..end }.rev())
}

/// A value as text: as it is, or within another, where strings are quoted.
pub(super) fn repr(value: &Jinja, within: bool) -> String {
    match value.kind() {
        ValueKind::String if within => match value.as_str().unwrap_or_default() {
            text if text.contains('\'') => serde_json::to_string(text).unwrap_or_default(),
            text => format!("'{text}'"),
        },
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::None => "None".to_owned(),
        ValueKind::Number if !value.is_integer() => float(value),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<String> = value.try_iter().into_iter().flatten().map(|v| repr(&v, true)).collect();
            format!("[{}]", items.join(", "))
        }
        ValueKind::Map => {
            let keys: Vec<Jinja> = value.try_iter().into_iter().flatten().collect();
            let entry = |k: &Jinja| {
                let v = value.get_item(k).unwrap_or_default();
                format!("{}: {}", repr(k, true), repr(&v, true))
            };
            format!("{{{}}}", keys.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        _ => value.to_string(),
    }
}

/// A fraction as llama.cpp prints it: six places, without the zeros at the end but for one.
pub(super) fn float(value: &Jinja) -> String {
    let number = f64::try_from(value.clone()).unwrap_or(0.0);
    let text = format!("{number:.6}");
    let text = text.trim_end_matches('0');
    if text.ends_with('.') { format!("{text}0") } else { text.to_owned() }
}

/// Of a list of messages those with a call of this id, those whose calls have ids that are no text, and what is no message;
/// all of what is no such list.
pub(super) fn calling(value: Jinja, id: Jinja) -> Jinja {
    match (value.downcast_object_ref::<List>(), id.as_str()) {
        (Some(messages), Some(id)) => {
            let places = messages.calls().get(id).map_or(&[][..], Vec::as_slice);
            let all = messages.calls().get("").map_or(&[][..], Vec::as_slice);
            let mut places = [places, all].concat();
            places.sort_unstable();
            places.dedup();
            list(places.into_iter().filter_map(|at| messages.items.get(at).cloned()).collect())
        }
        _ => value,
    }
}
