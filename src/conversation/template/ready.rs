//! Messages that are made ready for a template once: for most templates, what is read of a message depends on nothing but
//! the message. A long history then costs what the template itself does with it.

use minijinja::value::Value as Jinja;
use serde_json::Value;

use super::continued::Continue;
use super::{Options, Template, TemplateError, shape, values};

/// A message as one template sees it, wherever it stands.
#[derive(Debug, Clone)]
pub struct Ready {
    message: Jinja,
    system: bool,
    assistant: bool,
}

impl Template {
    /// A message by itself, for [`Template::render_ready`] of the same template; `None` where it is not seen by itself.
    pub fn ready(&self, message: &Value) -> Option<Ready> {
        let alone = !self.family.sees_all();
        let shaped = alone.then(|| shape::alone(self, message))?;
        let is = |role: &str| message["role"] == role || shaped["role"] == role;
        Some(Ready { message: values::value(&shaped), system: is("system"), assistant: is("assistant") })
    }

    /// As [`Template::render_request`], of messages that were made ready before and a request without them. `None` where
    /// this takes the messages themselves: the template has no system messages, or the reply continues the last one.
    pub fn render_ready(
        &self,
        messages: &[Ready],
        request: &Value,
        options: &Options,
    ) -> Option<Result<String, TemplateError>> {
        let options = Template::asked(request, options, self.family);
        let merges = !self.caps.system_role && messages.first().is_some_and(|m| m.system);
        let goes_on = options.continues != Continue::Reply || messages.last().is_some_and(|m| m.assistant);
        if merges || goes_on {
            return None;
        }
        let messages = values::list(messages.iter().map(|m| m.message.clone()).collect());
        let context = self.context(messages, shape::tools(request.get("tools")).as_ref(), &options);
        Some(self.reply(&context, &options))
    }
}
