//! Whether a model's template writes the calls of tools. Some write only what messages say, and a message would be told larger than
//! it is by what its calls have.

use bytes::Bytes;
use http::StatusCode;
use serde_json::json;

use super::drafts::Draft;
use super::situation::Situation;
use crate::conversation::Tokens;
use crate::proxy::App;
use crate::upstream::Error;
use crate::wire::openai_chat;

/// Arguments of a call, and longer ones.
const ARGUMENTS: [&str; 2] = ["{}", r#"{"path": "one two three four five six seven eight"}"#];

/// A template that writes calls makes at least so many tokens more of the longer ones.
const TELLING: Tokens = 4;

/// Asks the server whether its template writes calls, where the history has some and that is not known of the server as it is now:
/// true where that changes what is known. It counts a short request with one call, and the same with longer arguments.
pub(in crate::proxy) async fn learned_of_calls(app: &App, draft: &Draft<'_>) -> bool {
    let Situation { upstream, key, .. } = draft.situation;
    let has_calls = draft.request.conversation.body.iter().any(|message| !message.calls.is_empty());
    let recognized = upstream.recognized();
    if !has_calls || app.measure.knows_calls(key, recognized) || !upstream.can_count() {
        return false;
    }
    let was = app.measure.writes_calls(key).unwrap_or(true);
    let mut counted = [0; 2];
    for (tokens, arguments) in counted.iter_mut().zip(ARGUMENTS) {
        match upstream.count(&openai_chat::write(&draft.request, &called_with(arguments), &[])).await {
            Ok(told) => *tokens = told,
            // A template that takes no such messages says nothing of calls. Older servers answer 500 where a template fails.
            Err(Error::Status { status: StatusCode::BAD_REQUEST | StatusCode::INTERNAL_SERVER_ERROR, .. }) => {
                app.measure.note_calls(key, true, recognized);
                return !was;
            }
            // Anything else may pass: it is asked again.
            Err(_) => return false,
        }
    }
    let [short, long] = counted;
    let is_written = long >= short.saturating_add(TELLING);
    app.measure.note_calls(key, is_written, recognized);
    is_written != was
}

/// The shortest history with a call of these arguments.
fn called_with(arguments: &str) -> [Bytes; 3] {
    let call = json!({"id": "call_0", "type": "function", "function": {"name": "read", "arguments": arguments}});
    let calling = json!({"role": "assistant", "content": "", "tool_calls": [call]});
    [openai_chat::new_message("user", "."), Bytes::from(calling.to_string()), openai_chat::new_result("call_0", ".")]
}
