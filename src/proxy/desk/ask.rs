//! A person's question to one original.

use serde_json::{Value, json};

use super::record::row_of;
use super::report::record;
use crate::proxy::servers::{upstream_of, window_of};
use crate::proxy::turn::asking::{LONGEST, PATIENCE, read_for, reader, reader_of};
use crate::proxy::turn::situation::policy_of;
use crate::proxy::{App, Error};

/// `POST /windowsill/records/{id}/ask`: what a model finds in an original. `conversation`: only if it is of that one.
///
/// # Errors
/// 404 for an unknown id, 400 without a question, 409 where the model is at work.
pub async fn ask_original(app: &App, id: &str, conversation: Option<&str>, question: &str) -> Result<Value, Error> {
    let question = question.trim();
    if question.is_empty() || question.len() > LONGEST {
        let message = format!("`question` must be a text of 1 to {LONGEST} bytes");
        return Err(Error::client(400, "bad_question", message, "such as {\"question\": \"Which test failed?\"}"));
    }
    let found = record(app, id, conversation)?;
    let row = row_of(app, &found.conversation)?;
    let upstream = upstream_of(app, &row.model).await?;
    let window = window_of(app, &upstream, &row.model).await;
    let policy = policy_of(app, &row, &window);
    let reader = match reader(app, &policy, &upstream, &row.model).await {
        Some(reader) => reader,
        None if app.lives.is_busy() => {
            let hint = "ask again when it is done, or name a `digest_model` in [context] of config.toml";
            return Err(Error::client(409, "busy", format!("`{}` is at work on a request", row.model), hint));
        }
        None => reader_of(app, upstream, &row.model, None).await,
    };
    let text = found.inner().unwrap_or_else(|| found.text.clone());
    let answered = read_for(app, &row.id, id, &text, question, &reader, PATIENCE).await;
    Ok(json!({
        "id": id, "question": question, "by": answered.by, "lines": answered.total, "lines_read": answered.last,
        "parts": answered.parts, "text": answered.text,
        "answers": answered.found.iter().map(|(text, lines)| json!({"text": text, "lines": lines})).collect::<Vec<_>>(),
    }))
}
