//! What nobody writes and clients send: nulls, empty lists and texts, values of another type, deep nesting, roles that nobody knows,
//! in any place of a request.

use serde_json::{Value, json};

use crate::fakes::Dice;

/// Fields that hold how long a reply is and what it is asked of: without them nothing can be compared.
const KEPT: [&str; 7] = ["model", "stream", "max_tokens", "max_output_tokens", "temperature", "seed", "options"];

/// How deep a value may be nested that a tree of serde's cannot hold.
const DEEP: usize = 140;

/// Changes one place of a request.
pub(crate) fn mangle(body: &mut Value, dice: &mut Dice) {
    let mut places = Vec::new();
    for (key, value) in body.as_object().into_iter().flatten().filter(|(key, _)| !KEPT.contains(&key.as_str())) {
        gather(value, format!("/{}", escaped(key)), &mut places);
    }
    if places.is_empty() {
        return;
    }
    let place = places.swap_remove(dice.below(places.len()));
    let value = body.pointer_mut(&place).expect("it was there");
    *value = match dice.below(14) {
        0 | 1 => Value::Null,
        2 => json!(""),
        3 => json!([]),
        4 => json!({}),
        5 => json!(5),
        6 => json!(true),
        7 => json!("x"),
        8 => json!([null]),
        9 => json!([value.take()]),
        10 => json!([value.clone(), value.clone()]),
        11 => json!({"type": "text", "text": "x"}),
        12 => (0..DEEP).fold(json!(1), |inner, _| json!({"a": inner})),
        _ => json!(1.5),
    };
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn gather(value: &Value, place: String, places: &mut Vec<String>) {
    match value {
        Value::Array(all) => all.iter().enumerate().for_each(|(at, v)| gather(v, format!("{place}/{at}"), places)),
        Value::Object(all) => all.iter().for_each(|(key, v)| gather(v, format!("{place}/{}", escaped(key)), places)),
        _ => {}
    }
    places.push(place);
}
