//! Pure: a GGUF header without a vocabulary, from what Ollama says of the model's file: what the memory of a context is
//! reckoned by. Numbers have the widest width of their kind; a float without a fraction is told as a whole number.

use serde_json::Value;

use crate::gguf::{Kind, Writer};
use crate::upstream::Described;

/// Numbers of the kinds of values in a file.
const BOOL: u32 = 7;
const ARRAY: u32 = 9;
const U64: u32 = 10;
const I64: u32 = 11;
const F64: u32 = 12;

/// The number of a type of tensors that is not known here.
const UNKNOWN: u32 = u32::MAX;

/// The header's bytes; `None` where there are no tensors to speak of.
pub(super) fn file(described: &Described<'_>) -> Option<Vec<u8>> {
    if described.tensors().is_empty() {
        return None;
    }
    let mut out = metadata(described)?;
    for tensor in described.tensors() {
        let kind = Kind::named(&tensor.kind).map_or(UNKNOWN, |kind| kind.id);
        out = out.tensor(&tensor.name, &tensor.shape, kind);
    }
    Some(out.bytes())
}

/// A header with one more number.
pub(super) fn number(out: Writer, key: &str, number: u64) -> Writer {
    out.entry(key, U64, &number.to_le_bytes())
}

/// A header without tensors; `None` where an answer cannot be read.
pub(super) fn metadata(described: &Described<'_>) -> Option<Writer> {
    let mut out = Writer::default();
    for (key, value) in described.info().filter(|(key, _)| !key.starts_with("tokenizer.")) {
        let value: Value = serde_json::from_str(value.get()).ok()?;
        out = match &value {
            Value::Bool(yes) => out.flag(key, *yes),
            Value::String(text) => out.text(key, text),
            Value::Number(number) => {
                let (kind, bytes) = scalar(number);
                out.entry(key, kind, &bytes)
            }
            Value::Array(all) => array(out, key, all),
            Value::Null | Value::Object(_) => out,
        };
    }
    Some(out)
}

fn scalar(number: &serde_json::Number) -> (u32, [u8; 8]) {
    match (number.as_u64(), number.as_i64()) {
        (Some(n), _) => (U64, n.to_le_bytes()),
        (None, Some(n)) => (I64, n.to_le_bytes()),
        (None, None) => (F64, number.as_f64().unwrap_or(f64::NAN).to_le_bytes()),
    }
}

/// An array of one kind: booleans, whole numbers, or floats where any has a fraction. Texts are of no use here.
fn array(out: Writer, key: &str, all: &[Value]) -> Writer {
    let put = |kind: u32, values: Option<Vec<u8>>| {
        let head = [&kind.to_le_bytes()[..], &(all.len() as u64).to_le_bytes()].concat();
        values.map(|values| [head, values].concat())
    };
    let bytes = |of: &dyn Fn(&Value) -> Option<[u8; 8]>| {
        all.iter().map(of).collect::<Option<Vec<[u8; 8]>>>().map(|values| values.concat())
    };
    let flags = all.iter().map(|v| v.as_bool().map(u8::from)).collect::<Option<Vec<u8>>>();
    let found = put(BOOL, flags)
        .or_else(|| put(I64, bytes(&|v| v.as_i64().map(i64::to_le_bytes))))
        .or_else(|| put(F64, bytes(&|v| v.as_f64().map(f64::to_le_bytes))));
    match found {
        Some(value) if !all.is_empty() => out.entry(key, ARRAY, &value),
        _ => out,
    }
}
