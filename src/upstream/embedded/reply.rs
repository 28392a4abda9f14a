//! PURE: what the engine tells, in OpenAI's shapes, with what llama-server adds to them.

use serde_json::{Map, Value, json};

use super::request::Form;
use crate::engine::generate::{Ended, Refused};

/// What made a reply.
pub(super) const BUILD: &str = concat!("windowsill ", env!("CARGO_PKG_VERSION"));

/// What all parts of one reply have in common.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    /// Its id.
    pub(super) id: String,
    /// Seconds since 1970.
    pub(super) created: u64,
    /// The model's name, as it was asked for.
    pub(super) model: String,
    /// Whose words it is told in.
    pub(super) form: Form,
    /// What llama-server's own words say again of the request: the prompts, and the settings.
    pub(super) asked: (Vec<Value>, Value),
    /// How many replies each prompt gets.
    pub(super) choices: u32,
    /// What is wanted of a reply in llama-server's own words, by name; everything where there are none.
    pub(super) fields: Vec<String>,
    /// The tokens of the reply are wanted at its end, too.
    pub(super) tokens: bool,
    /// The window (tokens).
    pub(super) n_ctx: u32,
    /// Which of several replies is told.
    pub(super) index: u32,
}

impl Reply {
    /// One part of a stream.
    fn chunk(&self, choices: Value) -> Value {
        let object = if self.form == Form::Chat { "chat.completion.chunk" } else { "text_completion" };
        json!({
            "choices": choices, "created": self.created, "id": self.id, "model": self.model, "object": object,
            "system_fingerprint": BUILD,
        })
    }

    /// What a stream begins with: whose words follow. A text's begins with its words.
    pub(super) fn opening(&self) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": null});
        (self.form == Form::Chat)
            .then(|| self.chunk(json!([{"finish_reason": null, "index": self.index, "delta": delta}])))
    }

    /// More of a chat's reply.
    pub(super) fn said(&self, delta: &Value, odds: Vec<Value>) -> Value {
        let mut choice = json!({"finish_reason": null, "index": self.index, "delta": delta});
        if !odds.is_empty() {
            choice["logprobs"] = json!({"content": odds});
        }
        self.chunk(json!([choice]))
    }

    /// More of a text, which came to what is in `said` with it.
    pub(super) fn text(&self, text: &str, said: &mut Said) -> Value {
        let odds = std::mem::take(&mut said.odds);
        if self.form == Form::Native {
            let new = said.tokens.get(said.told..).unwrap_or_default();
            let mut out = json!({"index": self.index, "content": text, "tokens": new, "stop": false, "id_slot": 0,
                "tokens_predicted": said.tokens.len(), "tokens_evaluated": said.prompt});
            if !odds.is_empty() {
                out["completion_probabilities"] = odds.into();
            }
            said.told = said.tokens.len();
            return out;
        }
        let logprobs = logprobs(odds);
        self.chunk(json!([{"finish_reason": null, "index": self.index, "logprobs": logprobs, "text": text}]))
    }

    /// What the last of a reply's parts says.
    pub(super) fn last(&self, said: &Said, ended: &Ended) -> Value {
        let reason = finish_reason(ended, said.called());
        self.chunk(match self.form {
            Form::Chat => json!([{"finish_reason": reason, "index": self.index, "delta": {}}]),
            Form::Text => json!([{"finish_reason": reason, "index": self.index, "logprobs": null, "text": ""}]),
            Form::Native => {
                let last = self.native("", &said.content, said.tokens.get(said.told..).unwrap_or_default(), ended);
                return self.wanted(last);
            }
        })
    }

    /// A reply in llama-server's own words, or the end of one: `content` is what is told of it now, of `whole`.
    fn native(&self, content: &str, whole: &str, tokens: &[i32], ended: &Ended) -> Value {
        let (prompts, settings) = &self.asked;
        let prompt = usize::try_from(self.index / self.choices.max(1)).ok().and_then(|nth| prompts.get(nth));
        let held = ended.prompt_tokens.saturating_add(ended.completion_tokens);
        let why = match (ended.cut, &ended.stopped) {
            (true, _) => "limit",
            (false, Some(_)) => "word",
            (false, None) => "eos",
        };
        json!({
            "index": self.index, "content": content, "tokens": tokens, "id_slot": 0, "stop": true, "model": self.model,
            "tokens_predicted": ended.completion_tokens, "tokens_evaluated": ended.prompt_tokens,
            "generation_settings": settings, "prompt": prompt, "has_new_line": whole.contains('\n'),
            "truncated": ended.cut && held >= self.n_ctx, "stop_type": why,
            "stopping_word": ended.stopped.as_deref().unwrap_or_default(),
            "tokens_cached": held.saturating_sub(1), "timings": timings(ended),
        })
    }

    /// Those parts of a reply in llama-server's own words that are wanted, each by its whole path.
    fn wanted(&self, reply: Value) -> Value {
        if self.fields.is_empty() {
            return reply;
        }
        let part = |path: &String| {
            let found = path.split('/').try_fold(&reply, |within, name| within.get(name));
            Some((path.clone(), found?.clone()))
        };
        self.fields.iter().filter_map(part).collect::<Map<_, _>>().into()
    }

    /// What the replies took together, this one the last of them: a prompt counts once.
    pub(super) fn summed(&self, before: Option<Ended>, ended: &Ended) -> Ended {
        let Some(before) = before else { return ended.clone() };
        let mut sum = Ended {
            completion_tokens: before.completion_tokens.saturating_add(ended.completion_tokens),
            completion_ms: before.completion_ms + ended.completion_ms,
            ..before
        };
        if self.index.is_multiple_of(self.choices.max(1)) {
            sum.prompt_tokens = sum.prompt_tokens.saturating_add(ended.prompt_tokens);
            sum.cached_tokens = sum.cached_tokens.saturating_add(ended.cached_tokens);
            sum.prompt_ms += ended.prompt_ms;
        }
        sum
    }

    /// What a stream ends with, before its `[DONE]`; `sum`: over all replies.
    pub(super) fn closing(&self, mut last: Value, sum: &Ended, with_usage: bool) -> Vec<Value> {
        if self.form == Form::Native {
            return vec![last];
        }
        if !with_usage {
            last["timings"] = timings(sum);
            return vec![last];
        }
        let mut told = self.chunk(json!([]));
        (told["usage"], told["timings"]) = (usage(sum), timings(sum));
        vec![last, told]
    }

    /// One of several replies, at once.
    pub(super) fn choice(&self, said: &Said, ended: &Ended) -> Value {
        if self.form == Form::Native {
            let tokens = if self.tokens { &said.tokens[..] } else { &[] };
            let mut out = self.native(&said.content, &said.content, tokens, ended);
            if !said.odds.is_empty() {
                out["completion_probabilities"] = said.odds.clone().into();
            }
            return self.wanted(out);
        }
        let (reason, logprobs) = (finish_reason(ended, said.called()), logprobs(said.odds.clone()));
        if self.form == Form::Text {
            return json!({"finish_reason": reason, "index": self.index, "logprobs": logprobs, "text": said.content});
        }
        let mut choice = json!({"finish_reason": reason, "index": self.index, "message": said.message()});
        if !logprobs.is_null() {
            choice["logprobs"] = logprobs;
        }
        choice
    }

    /// All replies at once; `sum`: over all of them.
    pub(super) fn whole(&self, mut choices: Vec<Value>, sum: &Ended) -> Value {
        if self.form == Form::Native {
            let several = self.asked.0.len() > 1;
            return if several { choices.into() } else { choices.pop().unwrap_or_default() };
        }
        let object = if self.form == Form::Chat { "chat.completion" } else { "text_completion" };
        json!({
            "choices": choices, "created": self.created, "id": self.id, "model": self.model, "object": object,
            "system_fingerprint": BUILD, "usage": usage(sum), "timings": timings(sum),
        })
    }
}

/// The odds of tokens as OpenAI has them.
fn logprobs(odds: Vec<Value>) -> Value {
    if odds.is_empty() { Value::Null } else { json!({"content": odds}) }
}

fn finish_reason(ended: &Ended, called: bool) -> &'static str {
    match (ended.cut, called) {
        (true, _) => "length",
        (false, true) => "tool_calls",
        (false, false) => "stop",
    }
}

fn usage(ended: &Ended) -> Value {
    json!({
        "completion_tokens": ended.completion_tokens, "prompt_tokens": ended.prompt_tokens,
        "total_tokens": u64::from(ended.prompt_tokens) + u64::from(ended.completion_tokens),
        "prompt_tokens_details": {"cached_tokens": ended.cached_tokens},
    })
}

fn timings(ended: &Ended) -> Value {
    let evaluated = ended.prompt_tokens.saturating_sub(ended.cached_tokens);
    let rate = |n: u32, ms: f64| if ms > 0.0 { f64::from(n) * 1000.0 / ms } else { 0.0 };
    json!({
        "cache_n": ended.cached_tokens, "prompt_n": evaluated, "prompt_ms": ended.prompt_ms,
        "prompt_per_second": rate(evaluated, ended.prompt_ms), "predicted_n": ended.completion_tokens,
        "predicted_ms": ended.completion_ms, "predicted_per_second": rate(ended.completion_tokens, ended.completion_ms),
    })
}

/// What was said so far, put together from its deltas.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) content: String,
    /// The odds of its tokens that were not told yet.
    pub(super) odds: Vec<Value>,
    /// The tokens of a text, and how many of them were told.
    pub(super) tokens: Vec<i32>,
    told: usize,
    /// Tokens of the prompt.
    pub(super) prompt: u32,
    reasoning: String,
    calls: Vec<Call>,
}

#[derive(Debug, Default)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl Said {
    /// Takes one delta in.
    pub(super) fn take(&mut self, delta: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        self.content.push_str(&text(&delta["content"]));
        self.reasoning.push_str(&text(&delta["reasoning_content"]));
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
            // llama.cpp counts them up from 0.
            if index >= self.calls.len() {
                self.calls.push(Call::default());
            }
            let Some(known) = self.calls.get_mut(index) else { continue };
            known.id.push_str(&text(&call["id"]));
            known.name.push_str(&text(&call["function"]["name"]));
            known.arguments.push_str(&text(&call["function"]["arguments"]));
        }
    }

    /// Whether tools were called.
    pub(super) fn called(&self) -> bool {
        !self.calls.is_empty()
    }

    fn message(&self) -> Value {
        let mut out = Map::new();
        out.insert("role".into(), "assistant".into());
        let silent = self.content.is_empty() && self.called();
        out.insert("content".into(), if silent { Value::Null } else { self.content.clone().into() });
        if !self.reasoning.is_empty() {
            out.insert("reasoning_content".into(), self.reasoning.clone().into());
        }
        if self.called() {
            let call = |call: &Call| {
                let function = json!({"name": call.name, "arguments": call.arguments});
                json!({"type": "function", "id": call.id, "function": function})
            };
            out.insert("tool_calls".into(), self.calls.iter().map(call).collect());
        }
        Value::Object(out)
    }
}

/// An error in llama-server's shape, and its status.
pub(super) fn error(status: u16, kind: &str, message: &str) -> (u16, Value) {
    (status, json!({"error": {"code": status, "message": message, "type": kind}}))
}

/// A refusal in llama-server's words: `proxy` reads the window in them.
pub(super) fn refusal(why: &Refused) -> (u16, Value) {
    match why {
        Refused::TooLong { prompt_tokens, n_ctx } => {
            let message = format!(
                "request ({prompt_tokens} tokens) exceeds the available context size ({n_ctx} tokens), try increasing it"
            );
            let (status, mut body) = error(400, "exceed_context_size_error", &message);
            (body["error"]["n_prompt_tokens"], body["error"]["n_ctx"]) = ((*prompt_tokens).into(), (*n_ctx).into());
            (status, body)
        }
        Refused::Bad(why) => error(400, "invalid_request_error", why),
        Refused::Failed(why) => error(500, "server_error", why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(cut: bool) -> Ended {
        Ended {
            cut,
            stopped: None,
            prompt_tokens: 9,
            cached_tokens: 4,
            completion_tokens: 3,
            prompt_ms: 10.0,
            completion_ms: 0.0,
        }
    }

    fn reply(form: Form) -> Reply {
        Reply {
            id: "x-1".into(),
            created: 7,
            model: "m".into(),
            form,
            asked: (vec![json!("p")], json!({"n_predict": 3})),
            choices: 2,
            fields: Vec::new(),
            tokens: true,
            n_ctx: 64,
            index: 0,
        }
    }

    #[test]
    fn deltas_come_to_a_message() {
        let mut said = Said::default();
        for delta in [
            json!({"reasoning_content": "hm"}),
            json!({"content": "Look"}),
            json!({"content": "ing."}),
            json!({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": ""}}]}),
            json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"at\":"}}]}),
            json!({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
            json!({"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "run", "arguments": "{}"}}]}),
        ] {
            said.take(&delta);
        }
        let choice = reply(Form::Chat).choice(&said, &ended(false));
        let whole = reply(Form::Chat).whole(vec![choice], &ended(false));
        assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
        assert_eq!(
            whole["choices"][0]["message"],
            json!({
                "role": "assistant", "content": "Looking.", "reasoning_content": "hm",
                "tool_calls": [
                    {"type": "function", "id": "a", "function": {"name": "look", "arguments": "{\"at\":1}"}},
                    {"type": "function", "id": "b", "function": {"name": "run", "arguments": "{}"}},
                ],
            })
        );
        let total = (&whole["usage"]["total_tokens"], &whole["usage"]["prompt_tokens_details"]["cached_tokens"]);
        assert_eq!(total, (&json!(12), &json!(4)));
        assert_eq!(whole["timings"]["prompt_per_second"], 500.0);
        assert_eq!(whole["timings"]["predicted_per_second"], 0.0);
    }

    #[test]
    fn a_stream_ends_with_its_reason_and_with_its_usage_where_that_is_wanted() {
        let chat = reply(Form::Chat);
        let mut called = Said::default();
        called.take(&json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}));
        assert_eq!(chat.opening().unwrap()["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(reply(Form::Text).opening(), None);
        let with = chat.closing(chat.last(&Said::default(), &ended(true)), &ended(true), true);
        assert_eq!(with[0]["choices"][0]["finish_reason"], "length");
        assert_eq!((&with[1]["choices"], &with[1]["usage"]["prompt_tokens"]), (&json!([]), &json!(9)));
        let without = chat.closing(chat.last(&called, &ended(false)), &ended(false), false);
        assert_eq!((without.len(), &without[0]["choices"][0]["finish_reason"]), (1, &json!("tool_calls")));
        assert_eq!(reply(Form::Text).last(&Said::default(), &ended(false))["choices"][0]["text"], "");
        // Of several replies each says which it is, and the prompt counts once.
        let second = Reply { index: 1, ..reply(Form::Chat) };
        assert_eq!(second.opening().unwrap()["choices"][0]["index"], 1);
        assert_eq!(second.last(&Said::default(), &ended(false))["choices"][0]["index"], 1);
        let sum = second.summed(Some(ended(false)), &ended(false));
        assert_eq!((sum.prompt_tokens, sum.completion_tokens), (9, 2 * ended(false).completion_tokens));
        // The third is the first to the next prompt.
        let sum = Reply { index: 2, ..reply(Form::Text) }.summed(Some(sum), &ended(false));
        assert_eq!((sum.prompt_tokens, sum.completion_tokens), (18, 3 * ended(false).completion_tokens));
        assert_eq!(reply(Form::Text).text("a", &mut Said::default())["object"], "text_completion");
    }

    #[test]
    fn llama_servers_own_words_tell_tokens_and_why_a_reply_ends() {
        let native = reply(Form::Native);
        let mut said = Said { content: "a\nb".into(), tokens: vec![5, 6], prompt: 9, ..Said::default() };
        let part = native.text("a\n", &mut said);
        assert_eq!(
            (&part["tokens"], &part["stop"], &part["tokens_evaluated"]),
            (&json!([5, 6]), &json!(false), &json!(9))
        );
        said.tokens.push(7);
        let word = Ended { stopped: Some("END".into()), ..ended(false) };
        let last = &native.closing(native.last(&said, &word), &word, true)[..];
        assert_eq!((last.len(), &last[0]["tokens"], &last[0]["content"]), (1, &json!([7]), &json!("")));
        assert_eq!((&last[0]["stop_type"], &last[0]["stopping_word"]), (&json!("word"), &json!("END")));
        assert_eq!((&last[0]["has_new_line"], &last[0]["generation_settings"]["n_predict"]), (&json!(true), &json!(3)));
        let whole = native.whole(vec![native.choice(&said, &ended(true))], &ended(true));
        assert_eq!((&whole["content"], &whole["tokens"]), (&json!("a\nb"), &json!([5, 6, 7])));
        assert_eq!(
            (&whole["stop_type"], &whole["truncated"], &whole["prompt"]),
            (&json!("limit"), &json!(false), &json!("p"))
        );
        let fields = ["content", "generation_settings/n_predict", "timings/none", "prompt"].map(str::to_owned).into();
        let some = Reply { fields, ..native.clone() };
        let expected = json!({"content": "a\nb", "generation_settings/n_predict": 3, "prompt": "p"});
        assert_eq!(some.whole(vec![some.choice(&said, &ended(true))], &ended(true)), expected);
        let of_two = Reply { asked: (vec![json!("p"), json!("q")], json!({})), choices: 1, index: 1, ..native.clone() };
        let both = of_two.whole(vec![json!({}), of_two.choice(&said, &ended(true))], &ended(true));
        assert_eq!((&both[1]["index"], &both[1]["prompt"], &both[0]), (&json!(1), &json!("q"), &json!({})));
        let full = Reply { n_ctx: 12, ..native };
        assert_eq!(full.choice(&said, &ended(true))["truncated"], true);
        assert_eq!(full.choice(&said, &ended(false))["stop_type"], "eos");
    }

    #[test]
    fn a_prompt_that_is_too_long_is_refused_in_words_that_tell_the_window() {
        let (status, body) = refusal(&Refused::TooLong { prompt_tokens: 5000, n_ctx: 4096 });
        assert_eq!((status, &body["error"]["n_ctx"]), (400, &json!(4096)));
        let read = crate::upstream::overflow::overflow(status, body.to_string().as_bytes());
        let read = read.expect("it is recognized");
        assert_eq!((read.window, read.prompt), (Some(4096), Some(5000)));
        assert_eq!(refusal(&Refused::Failed("x".into())).0, 500);
    }
}
