//! What a conversation is for: the request's header says it, or the name of its model (`qwen3:8b#debug`), or the config, or what
//! a person said first.

use bytes::Bytes;
use http::HeaderMap;
use serde_json::json;
use tracing::info;

use super::prepare::Prepared;
use super::{App, headers};
use crate::config::TASK_AUTO;
use crate::conversation::task;
use crate::wire::json as spelled;
use crate::wire::openai_chat::Request;

impl App {
    /// Notes the task of a request, and takes it out of the model's name.
    pub(super) fn take_task(&self, request: &mut Request, from_client: &HeaderMap) {
        let named = request.model.rsplit_once('#').filter(|(_, task)| self.config.task(task).is_some());
        let named = named.map(|(model, task)| (model.to_owned(), task.to_owned()));
        if let Some((model, _)) = &named {
            let text = String::from_utf8_lossy(&request.body).into_owned();
            let spelled = json!(model).to_string();
            request.body = spelled::with_fields(&text, &[("model", Some(&spelled))]).unwrap_or(Bytes::from(text));
            request.model.clone_from(model);
        }
        let set = || match self.config.task.as_str() {
            "" => None,
            TASK_AUTO => task::told(&request.conversation.body).map(|told| told.task.to_owned()),
            name => Some(name.to_owned()),
        };
        request.task = headers::text(from_client, &headers::TASK).or(named.map(|(_, task)| task)).or_else(set);
    }

    /// Says once which task was told from what a person said.
    pub(super) fn note_task(&self, prepared: &Prepared) {
        let Some(name) = prepared.policy.task.as_ref().filter(|_| self.config.task == TASK_AUTO) else { return };
        let told = task::told(&prepared.request.conversation.body).filter(|told| told.task == name);
        let fresh = self.lives.with(&prepared.id, |live| live.task.replace(name.clone()).as_ref() != Some(name));
        if let Some(told) = told.filter(|_| fresh) {
            info!(conversation = %prepared.id, task = told.task, "the task was told from what was said first");
            let data = json!({"task": told.task, "how": "told", "cues": told.cues, "next": told.next});
            self.note_event(&prepared.id, "task", data);
        }
    }
}
