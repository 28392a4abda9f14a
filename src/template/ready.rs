//! Messages that are made ready for a template once: for most templates, what is read of a message depends on nothing but
//! the message. A long history then costs what the template itself does with it.

use minijinja::value::Value as Jinja;
use serde_json::Value;

use super::continued::Continue;
use super::family::Family;
use super::shape::Place;
use super::{Options, Template, TemplateError, shape, values};

/// A message as one template sees it, wherever it stands.
#[derive(Debug, Clone)]
pub struct Ready {
    message: Jinja,
    system: bool,
    assistant: bool,
    /// Where messages are put in another order.
    place: Option<Box<Place>>,
}

impl Template {
    /// A message by itself, for [`Template::render_ready`] of the same template; `None` where it is not seen by itself.
    pub fn ready(&self, message: &Value) -> Option<Ready> {
        // Calls, their results and the answer become one message.
        if self.family == Family::Gemma4Outdated {
            return None;
        }
        let shaped = shape::alone(self, message);
        let is = |role: &str| message["role"] == role || shaped["role"] == role;
        let place = (self.family == Family::DeepSeek4).then(|| Box::new(Place::of(&shaped)));
        Some(Ready { message: values::value(&shaped), system: is("system"), assistant: is("assistant"), place })
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
        let places: Option<Vec<Place>> = messages.iter().map(|m| m.place.as_deref().cloned()).collect();
        let order = places.map_or_else(|| (0..messages.len()).collect(), |places| shape::in_call_order(&places));
        let messages = values::list(order.into_iter().map(|i| messages[i].message.clone()).collect());
        let context = self.context(messages, shape::tools(request.get("tools")).as_ref(), &options);
        Some(self.reply(&context, &options))
    }
}
