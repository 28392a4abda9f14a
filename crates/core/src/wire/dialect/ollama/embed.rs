//! Embeddings in Ollama's words: `POST /api/embed`, and `/api/embeddings` of before. For servers that have OpenAI's
//! `POST /v1/embeddings`.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::super::{WireError, object, wrong};
use super::{model, says_nothing};

/// Which of the two ways to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Embeds {
    /// `/api/embed`: `input` is a text or several.
    Several,
    /// `/api/embeddings`: `prompt` is one text.
    One,
}

/// The request in OpenAI's words. `None` where there is nothing to embed: it loads a model.
///
/// # Errors
/// What has the wrong shape, with the path of the field.
pub fn request(body: &[u8], of: Embeds) -> Result<Option<Bytes>, WireError> {
    let asked = object(body)?;
    let model = model(&asked)?;
    let key = if of == Embeds::Several { "input" } else { "prompt" };
    let input = match asked.get(key) {
        None => return Ok(None),
        Some(nothing) if says_nothing(nothing) => return Ok(None),
        Some(text @ Value::String(_)) => text.clone(),
        Some(Value::Array(texts)) if of == Embeds::Several && texts.iter().all(Value::is_string) => {
            texts.clone().into()
        }
        Some(_) if of == Embeds::Several => return Err(wrong(key, "must be a string or an array of strings")),
        Some(_) => return Err(wrong(key, "must be a string")),
    };
    let mut out = Map::from_iter([
        ("model".to_owned(), model.into()),
        ("input".to_owned(), input),
        ("encoding_format".to_owned(), "float".into()),
    ]);
    out.extend(asked.get("dimensions").filter(|n| n.is_u64()).map(|n| ("dimensions".to_owned(), n.clone())));
    Ok(Some(Value::Object(out).to_string().into()))
}

/// The reply, from OpenAI's; `Null` for that where there was nothing to embed. `None` where it is none.
pub fn reply(model: &str, said: &Value, of: Embeds) -> Option<Value> {
    let mut all: Vec<(u64, &Value)> = Vec::new();
    if !said.is_null() {
        for (at, one) in said.get("data")?.as_array()?.iter().enumerate() {
            let index = one.get("index").and_then(Value::as_u64).unwrap_or(at as u64);
            all.push((index, one.get("embedding").filter(|numbers| numbers.is_array())?));
        }
    }
    all.sort_by_key(|(index, _)| *index);
    let mut all = all.into_iter().map(|(_, numbers)| numbers.clone());
    Some(match of {
        Embeds::One => json!({"embedding": all.next().unwrap_or_else(|| json!([]))}),
        Embeds::Several => {
            let count = said.pointer("/usage/prompt_tokens").and_then(Value::as_u64).unwrap_or(0);
            json!({"model": model, "embeddings": all.collect::<Vec<Value>>(), "total_duration": 0, "load_duration": 0,
                "prompt_eval_count": count})
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: &Value, of: Embeds) -> Option<Value> {
        let asked = request(body.to_string().as_bytes(), of).unwrap()?;
        Some(serde_json::from_slice(&asked).unwrap())
    }

    #[test]
    fn texts_go_out_in_openais_words_and_come_back_in_order() {
        let several =
            json!({"model": "m", "input": ["a", "b"], "truncate": true, "options": {"num_ctx": 9}, "dimensions": 8});
        assert_eq!(
            asked(&several, Embeds::Several).unwrap(),
            json!({"model": "m", "input": ["a", "b"], "encoding_format": "float", "dimensions": 8})
        );
        let said = json!({"data": [{"index": 1, "embedding": [0.5]}, {"index": 0, "embedding": [0.25]}],
            "usage": {"prompt_tokens": 7}});
        let reply = |said: &Value, of| reply("m", said, of).unwrap();
        assert_eq!(reply(&said, Embeds::Several)["embeddings"], json!([[0.25], [0.5]]));
        assert_eq!(reply(&said, Embeds::Several)["prompt_eval_count"], 7);
        assert_eq!(asked(&json!({"model": "m", "prompt": "a"}), Embeds::One).unwrap()["input"], "a");
        assert_eq!(reply(&said, Embeds::One), json!({"embedding": [0.25]}));
        // What only loads a model asks for nothing.
        for nothing in [json!({"model": "m"}), json!({"model": "m", "input": ""}), json!({"model": "m", "input": []})] {
            assert_eq!(asked(&nothing, Embeds::Several), None, "{nothing}");
        }
        assert_eq!(reply(&Value::Null, Embeds::Several)["embeddings"], json!([]));
        assert_eq!(reply(&Value::Null, Embeds::One), json!({"embedding": []}));
        assert_eq!(super::reply("m", &json!({"error": "no"}), Embeds::One), None);
    }

    #[test]
    fn other_shapes_are_named() {
        let field = |body: Value, of| request(body.to_string().as_bytes(), of).unwrap_err().param().map(str::to_owned);
        assert_eq!(field(json!({"input": "a"}), Embeds::Several).as_deref(), Some("model"));
        for input in [json!(5), json!([1]), json!({"a": 1})] {
            assert_eq!(field(json!({"model": "m", "input": input}), Embeds::Several).as_deref(), Some("input"));
        }
        assert_eq!(field(json!({"model": "m", "prompt": ["a"]}), Embeds::One).as_deref(), Some("prompt"));
    }
}
