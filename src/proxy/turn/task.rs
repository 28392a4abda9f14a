//! What a conversation is for: the request's header says it, or the name of its model (`qwen3:8b#debug`), or the config, or what
//! a person said first.

use bytes::Bytes;
use http::HeaderMap;
use serde_json::json;
use tracing::info;

use super::prepared::Prepared;
use crate::config::TASK_AUTO;
use crate::conversation::task;
use crate::proxy::state::headers;
use crate::proxy::state::notes::note_event;
use crate::proxy::{App, Error};
use crate::wire::json as spelled;
use crate::wire::openai_chat::Request;

/// Notes the task of a request, and takes it out of the model's name.
///
/// # Errors
/// 400 for a name that no task has: in the header, or behind a `#` in the name of a model that no server lists so.
pub(in crate::proxy) async fn take_task(
    app: &App,
    request: &mut Request,
    from_client: &HeaderMap,
) -> Result<(), Error> {
    let header = headers::text(from_client, &headers::TASK);
    let asked = header.as_deref().map(str::trim).filter(|name| !name.is_empty());
    if let Some(name) = asked.filter(|name| app.config.task(name).is_none()) {
        return Err(no_task(app, name, "the header `x-windowsill-task`"));
    }
    let named = request.model.rsplit_once('#').map(|(model, task)| (model.to_owned(), task.to_owned()));
    let is_task = |name: &str| app.config.task(name).is_some();
    if let Some((_, task)) = named.as_ref().filter(|(_, task)| !is_task(task))
        && is_not_listed(app, &request.model).await
    {
        return Err(no_task(app, task, &format!("the model's name `{}`", request.model)));
    }
    let named = named.filter(|(_, task)| is_task(task));
    if let Some((model, _)) = &named {
        let text = String::from_utf8_lossy(&request.body).into_owned();
        let spelled = json!(model).to_string();
        request.body = spelled::with_fields(&text, &[("model", Some(&spelled))]).unwrap_or(Bytes::from(text));
        request.model.clone_from(model);
    }
    let set = || match app.config.task.as_str() {
        "" => None,
        TASK_AUTO => task::told(&request.conversation.body).map(|told| told.task.to_owned()),
        name => Some(name.to_owned()),
    };
    request.task = header.or(named.map(|(_, task)| task)).or_else(set);
    Ok(())
}

fn no_task(app: &App, name: &str, place: &str) -> Error {
    let names: Vec<&str> = app.config.tasks.iter().map(|task| task.name.as_str()).collect();
    let message = format!("there is no task `{name}`, which {place} names");
    Error::client(400, "unknown_task", message, &format!("the tasks are {}", names.join(", ")))
}

/// Whether every server told its models, and none of them is spelled like this.
async fn is_not_listed(app: &App, model: &str) -> bool {
    for upstream in &app.servers.all {
        match upstream.models().await {
            Ok(models) if models.iter().all(|listed| listed.id != model) => {}
            _ => return false,
        }
    }
    true
}

/// Says once for which task a conversation is taken: somebody named it, or it was told from what a person said.
pub(in crate::proxy) fn note_task(app: &App, prepared: &Prepared) {
    let Some(name) = &prepared.policy.task else { return };
    let before = app.lives.with(&prepared.id, |live| live.task.replace(name.clone()));
    let before = before.or_else(|| task_kept(app, &prepared.id));
    if before.as_ref() == Some(name) {
        return;
    }
    let told = match app.config.task == TASK_AUTO {
        true => task::told(&prepared.request.conversation.body).filter(|told| told.task == name),
        false => None,
    };
    let data = match told {
        Some(told) => json!({"task": name, "how": "told", "cues": told.cues, "next": told.next}),
        None => json!({"task": name, "how": "named", "before": before}),
    };
    info!(conversation = %prepared.id, task = %name, how = %data["how"], "the conversation has a task");
    note_event(app, &prepared.id, "task", data);
}

/// The task that the record has for a conversation, where a process before this one worked on it.
fn task_kept(app: &App, id: &str) -> Option<String> {
    let row = app.store.conversation(id).ok()??;
    row.state["task"].as_str().filter(|_| row.id == id).map(str::to_owned)
}
