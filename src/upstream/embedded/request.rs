//! PURE: what a client asks, in OpenAI's words and llama-server's, as the engine is asked it. Whatever the engine cannot do is
//! refused by its name.

use serde_json::{Map, Value, json};

use super::nested;
use crate::engine::generate::Request;

/// Numbers that choose tokens, as llama-server names them, and whether they are whole.
const SAMPLING: [(&str, bool); 22] = [
    ("seed", true),
    ("temperature", false),
    ("top_k", true),
    ("top_p", false),
    ("min_p", false),
    ("typical_p", false),
    ("top_n_sigma", false),
    ("xtc_probability", false),
    ("xtc_threshold", false),
    ("dynatemp_range", false),
    ("dynatemp_exponent", false),
    ("repeat_last_n", true),
    ("repeat_penalty", false),
    ("frequency_penalty", false),
    ("presence_penalty", false),
    ("dry_multiplier", false),
    ("dry_base", false),
    ("dry_allowed_length", true),
    ("dry_penalty_last_n", true),
    ("mirostat", true),
    ("mirostat_tau", false),
    ("mirostat_eta", false),
];

/// Replies to one request at most. They are made one after the other.
const CHOICES: u32 = 16;

/// Tokens whose odds are told at each place: at most, and unless the client says how many.
const LIKELY: u64 = 1_000;
const USUAL_LIKELY: u64 = 20;

/// The levels of JSON that serde_json reads.
const JSON_LEVELS: usize = 127;

/// Whose words a request is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's completions of a text.
    Text,
    /// llama-server's own (`/completion`).
    Native,
}

/// A request, read.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Asked {
    /// For the engine, with the first of the prompts.
    pub(super) request: Request,
    /// The other prompts of a text, each of which gets replies of its own.
    pub(super) more: Vec<Value>,
    /// The usage is wanted at the end of a stream.
    pub(super) usage: bool,
    /// How many replies to each prompt are wanted.
    pub(super) choices: u32,
    /// The model's name in the request, which the reply says again.
    pub(super) model: Option<String>,
    /// The tokens of the reply are wanted at its end, too.
    pub(super) tokens: bool,
    /// What is wanted of the reply, and nothing else: names, or paths with `/` between them. Everything where there are none.
    pub(super) fields: Vec<String>,
}

/// Reads the body of `/v1/chat/completions`, `/v1/completions` or `/completion`.
///
/// # Errors
/// What is wrong with it, by the name of the field.
pub(super) fn read(body: &[u8], form: Form) -> Result<Asked, String> {
    let body: Value = serde_json::from_slice(body).map_err(|e| unreadable(&e))?;
    let body = body.as_object().ok_or("the body is not a JSON object")?;
    cannot(body)?;
    let (mut out, mut more) = (Map::new(), Vec::new());
    match form {
        Form::Chat => conversation(body, &mut out)?,
        Form::Text | Form::Native => {
            let mut all = prompts(body.get("prompt").unwrap_or(&Value::Null))?.into_iter();
            out.insert("prompt".into(), all.next().unwrap_or_default());
            more = all.collect();
        }
    }
    format(body, &mut out)?;
    out.insert("sampling".into(), Value::Object(sampling(body)?));
    if let Some(likely) = likely(body, form)? {
        out.insert("likely".into(), likely.into());
        if flag(body, "post_sampling_probs")?.unwrap_or(false) {
            out.insert("as_chosen".into(), true.into());
        }
    }
    let stream = flag(body, "stream")?.unwrap_or(false);
    let request =
        Request { body: Value::Object(out), stop: stops(body)?, max_tokens: most(body)?, stream, ..Request::default() };
    let usage = body.get("stream_options").is_some_and(|options| options["include_usage"] == true);
    let model = body.get("model").and_then(Value::as_str).filter(|name| !name.is_empty()).map(str::to_owned);
    let choices = there(body, "n").map_or(Some(1), |n| n.as_u64().and_then(|n| u32::try_from(n).ok()));
    let choices = choices.filter(|n| (1..=CHOICES).contains(n));
    let choices = choices.ok_or_else(|| format!("`n` must be a whole number from 1 to {CHOICES}"))?;
    let tokens = flag(body, "return_tokens")?.unwrap_or(false);
    let choices = if form == Form::Native { 1 } else { choices };
    let fields = if form == Form::Native { fields(body)? } else { Vec::new() };
    Ok(Asked { request, more, usage, choices, model, tokens, fields })
}

impl Asked {
    /// What replies in llama-server's own words say again: the prompts, and the settings that were named.
    pub(super) fn again(&self) -> (Vec<Value>, Value) {
        let Request { body, stop, max_tokens, stream, .. } = &self.request;
        let most = max_tokens.map_or(-1, i64::from);
        let mut settings = body["sampling"].clone();
        for (key, value) in [
            ("n_predict", most.into()),
            ("max_tokens", most.into()),
            ("stream", (*stream).into()),
            ("stop", stop.clone().into()),
            ("n_probs", body.get("likely").cloned().unwrap_or_else(|| 0.into())),
            ("post_sampling_probs", body.get("as_chosen").is_some().into()),
        ] {
            settings[key] = value;
        }
        let first = body.get("prompt").cloned().unwrap_or_default();
        (std::iter::once(first).chain(self.more.iter().cloned()).collect(), settings)
    }

    /// What the engine is asked for each reply, in turn: a seed of the client's own gives each of them to one prompt one of its own.
    pub(super) fn each(&self) -> impl Iterator<Item = Request> + Send + use<> {
        let (request, choices) = (self.request.clone(), self.choices);
        let prompts = std::iter::once(None).chain(self.more.clone().into_iter().map(Some));
        prompts.flat_map(move |prompt| (0..choices).map(move |nth| (prompt.clone(), nth))).map(move |(prompt, nth)| {
            let mut request = request.clone();
            if let Some(prompt) = prompt {
                request.body["prompt"] = prompt;
            }
            if let Some(seed) = request.body["sampling"]["seed"].as_u64().filter(|seed| *seed < u64::from(u32::MAX)) {
                request.body["sampling"]["seed"] = ((seed + u64::from(nth)) % u64::from(u32::MAX)).into();
            }
            request
        })
    }
}

/// Reads the body of `/tokenize`, `/detokenize` or `/apply-template`.
///
/// # Errors
/// What is wrong with it, by the name of the field.
pub(super) fn words(path: &str, body: &[u8]) -> Result<Value, String> {
    let body: Value = serde_json::from_slice(body).map_err(|e| unreadable(&e))?;
    let body = body.as_object().ok_or("the body is not a JSON object")?;
    let mut out = Map::new();
    match path {
        "/apply-template" => conversation(body, &mut out)?,
        "/detokenize" => {
            let tokens = there(body, "tokens").and_then(Value::as_array).ok_or("`tokens` must be an array")?;
            if !tokens.iter().all(|token| token.as_u64().is_some_and(|token| i32::try_from(token).is_ok())) {
                return Err("`tokens` must be an array of tokens".into());
            }
            out.insert("tokens".into(), tokens.clone().into());
        }
        _ => {
            let content = there(body, "content").and_then(Value::as_str).ok_or("`content` must be a string")?;
            out.insert("content".into(), content.into());
            for key in ["add_special", "parse_special", "with_pieces"] {
                if let Some(set) = flag(body, key)? {
                    out.insert(key.into(), set.into());
                }
            }
        }
    }
    Ok(Value::Object(out))
}

/// Why a body cannot be read. That it is nested too deep is no matter of its spelling, and is told with the number.
fn unreadable(why: &serde_json::Error) -> String {
    if why.to_string().starts_with("recursion limit") {
        return format!("the body is nested more than {JSON_LEVELS} levels deep: no more are read");
    }
    format!("the body is not JSON: {why}")
}

fn there<'a>(body: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    body.get(key).filter(|value| !value.is_null())
}

fn flag(body: &Map<String, Value>, key: &str) -> Result<Option<bool>, String> {
    there(body, key).map(|value| value.as_bool().ok_or(format!("`{key}` must be true or false"))).transpose()
}

/// What this engine has nothing for.
fn cannot(body: &Map<String, Value>) -> Result<(), String> {
    let refused =
        |what: &str| Err(format!("`{what}` is more than the embedded engine can do: use llama-server for that"));
    for key in ["echo", "suffix", "best_of", "lora"] {
        if there(body, key).is_some_and(|value| *value != false && *value != 1 && *value != "" && *value != json!([])) {
            return refused(key);
        }
    }
    Ok(())
}

/// Of how many tokens the odds are wanted at each place; `None` where none are. As llama-server reads it: a chat says `logprobs: true`,
/// with 20 of them unless `top_logprobs` says otherwise, a text says the number.
fn likely(body: &Map<String, Value>, form: Form) -> Result<Option<u64>, String> {
    let wrong = |key: &str| format!("`{key}` must be a whole number from 0 to {LIKELY}");
    let number = |key: &str| match there(body, key) {
        None => Ok(None),
        Some(value) => value.as_u64().filter(|n| *n <= LIKELY).map(Some).ok_or_else(|| wrong(key)),
    };
    if form != Form::Chat {
        return Ok(number("logprobs")?.or(number("n_probs")?.filter(|n| *n > 0)));
    }
    let wanted = flag(body, "logprobs")?.unwrap_or(false);
    match (wanted, number("top_logprobs")?) {
        (true, top) => Ok(Some(top.unwrap_or(USUAL_LIKELY))),
        (false, None | Some(0)) => Ok(number("n_probs")?.filter(|n| *n > 0)),
        (false, Some(_)) => Err("`top_logprobs` needs `logprobs: true`".into()),
    }
}

/// What the prompt is made of.
fn conversation(body: &Map<String, Value>, out: &mut Map<String, Value>) -> Result<(), String> {
    let messages = there(body, "messages").and_then(Value::as_array).ok_or("`messages` must be an array")?;
    let last = messages.last().ok_or("`messages` is empty")?;
    out.insert("messages".into(), Value::Array(messages.clone()));

    let tools = match there(body, "tools") {
        None => &[][..],
        Some(tools) => tools.as_array().ok_or("`tools` must be an array")?,
    };
    for tool in tools {
        nested::schema("tools", &tool["function"]["parameters"])?;
    }
    let (tools, choice) = chosen(tools, there(body, "tool_choice"))?;
    if !tools.is_empty() {
        out.insert("tools".into(), Value::Array(tools));
        out.insert("tool_choice".into(), choice.into());
    }
    if let Some(parallel) = flag(body, "parallel_tool_calls")? {
        out.insert("parallel_tool_calls".into(), parallel.into());
    }
    let mut kwargs = match there(body, "chat_template_kwargs") {
        None => Map::new(),
        Some(kwargs) => kwargs.as_object().ok_or("`chat_template_kwargs` must be an object")?.clone(),
    };
    match there(body, "reasoning_effort").map(|effort| effort.as_str().ok_or("`reasoning_effort` must be a string")) {
        Some(Ok("none")) => {
            kwargs.insert("enable_thinking".into(), false.into());
            kwargs.shift_remove("reasoning_effort");
        }
        Some(Ok(effort)) if !effort.is_empty() => {
            kwargs.insert("reasoning_effort".into(), effort.into());
        }
        Some(Err(why)) => return Err(why.into()),
        _ => {}
    }
    if !kwargs.is_empty() {
        out.insert("chat_template_kwargs".into(), Value::Object(kwargs));
    }
    for key in ["reasoning_format", "add_generation_prompt", "thinking_budget_tokens"] {
        if let Some(value) = there(body, key) {
            out.insert(key.into(), value.clone());
        }
    }
    let calls = last["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty());
    let continued = match there(body, "continue_final_message") {
        Some(what) if *what != false => Some(what.clone()),
        // llama-server goes on with a reply that was begun.
        _ => (last["role"] == "assistant" && !calls).then(|| true.into()),
    };
    if there(body, "add_generation_prompt").is_some_and(|wanted| *wanted == true) && continued_by_name(body) {
        return Err("either `add_generation_prompt` or `continue_final_message` may be true, not both".into());
    }
    if let Some(continued) = continued {
        out.insert("continue_final_message".into(), continued);
    }
    Ok(())
}

/// Whether a client says itself that the last message is to be gone on with.
fn continued_by_name(body: &Map<String, Value>) -> bool {
    there(body, "continue_final_message").is_some_and(|what| *what != false)
}

/// The tools to offer, and how: one tool that is to be called is the only one, and required.
fn chosen(tools: &[Value], choice: Option<&Value>) -> Result<(Vec<Value>, &'static str), String> {
    let named = |choice: &Value| choice.pointer("/function/name").or(choice.get("name")).cloned();
    let choice = match choice {
        None => return Ok((tools.to_vec(), "auto")),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => return Ok((tools.to_vec(), "auto")),
            "none" => return Ok((tools.to_vec(), "none")),
            "required" | "any" => return Ok((tools.to_vec(), "required")),
            other => return Err(format!("`tool_choice` is \"{other}\", and neither auto, none nor required")),
        },
        Some(choice) => choice,
    };
    let name = named(choice).ok_or("`tool_choice` names no function")?;
    let meant: Vec<Value> = tools.iter().filter(|tool| tool["function"]["name"] == name).cloned().collect();
    if meant.is_empty() {
        Err(format!("`tool_choice` names {name}, which is not among the tools"))
    } else {
        Ok((meant, "required"))
    }
}

/// What the reply is to look like.
fn format(body: &Map<String, Value>, out: &mut Map<String, Value>) -> Result<(), String> {
    let mut schema = there(body, "json_schema").cloned();
    if let Some(format) = there(body, "response_format") {
        match format["type"].as_str() {
            Some("text") => {}
            Some("json_object") => {
                schema = Some(there_in(format, "schema").unwrap_or_else(|| json!({"type": "object"})))
            }
            Some("json_schema") => {
                let given = format.pointer("/json_schema/schema").filter(|schema| !schema.is_null()).cloned();
                schema = Some(given.or_else(|| there_in(format, "schema")).ok_or("`response_format` has no schema")?);
            }
            _ => return Err("`response_format.type` must be text, json_object or json_schema".into()),
        }
    }
    let grammar = match there(body, "grammar") {
        None => None,
        Some(grammar) => Some(grammar.as_str().ok_or("`grammar` must be a string")?).filter(|text| !text.is_empty()),
    };
    match (schema, grammar) {
        (Some(_), Some(_)) => return Err("either `json_schema` or `grammar`, not both".into()),
        (Some(schema), None) if schema.is_object() => {
            nested::schema("json_schema", &schema)?;
            out.insert("json_schema".into(), schema);
        }
        (Some(_), None) => return Err("`json_schema` must be an object".into()),
        (None, Some(grammar)) => {
            nested::grammar(grammar)?;
            out.insert("grammar".into(), grammar.into());
        }
        (None, None) => {}
    }
    Ok(())
}

fn there_in(value: &Value, key: &str) -> Option<Value> {
    value.get(key).filter(|value| !value.is_null()).cloned()
}

/// The prompts, as llama-server reads them: a text, or tokens, or tokens and texts in a row; or a list of such prompts. There is one at
/// least.
fn prompts(prompt: &Value) -> Result<Vec<Value>, String> {
    match prompt {
        Value::Array(all) if !all.is_empty() && !all.iter().any(is_token) => all.iter().map(one_prompt).collect(),
        one => Ok(vec![one_prompt(one)?]),
    }
}

fn is_token(part: &Value) -> bool {
    part.as_i64().is_some_and(|token| i32::try_from(token).is_ok())
}

fn one_prompt(prompt: &Value) -> Result<Value, String> {
    match prompt {
        Value::String(_) => Ok(prompt.clone()),
        Value::Object(said) if !said.contains_key("multimodal_data") => {
            one_prompt(said.get("prompt_string").filter(|text| text.is_string()).unwrap_or(&Value::Null))
        }
        Value::Array(all) if all.iter().any(is_token) && all.iter().all(|part| part.is_string() || is_token(part)) => {
            Ok(prompt.clone())
        }
        _ => Err(
            "`prompt` must be a text, a list of tokens, or a list of such prompts: the embedded engine takes no pictures there"
                .into(),
        ),
    }
}

/// The tokens that are to be likelier or less likely, as llama-server reads them: an object of tokens or texts and how much, or a list
/// of pairs of these. `false` is for never.
fn biases(biases: &Value) -> Result<Vec<Value>, String> {
    let wrong = || {
        "`logit_bias` must be an object of tokens or texts and numbers, or a list of such pairs (`false` for never)"
            .to_owned()
    };
    let sound = |bias: &Value| bias.is_number() || *bias == false;
    match biases {
        Value::Object(all) => {
            let pair = |(of, bias): (&String, &Value)| {
                let of = of.parse::<i64>().map_or_else(|_| json!(of), Value::from);
                sound(bias).then(|| json!([of, bias])).ok_or_else(wrong)
            };
            all.iter().map(pair).collect()
        }
        Value::Array(all) => {
            let pair = |pair: &Value| match pair.as_array().map(Vec::as_slice) {
                Some([of, bias]) if (of.is_i64() || of.is_string()) && sound(bias) => Ok(pair.clone()),
                _ => Err(wrong()),
            };
            all.iter().map(pair).collect()
        }
        _ => Err(wrong()),
    }
}

/// What is wanted of a reply, by name.
fn fields(body: &Map<String, Value>) -> Result<Vec<String>, String> {
    let wrong = || "`response_fields` must be an array of strings".to_owned();
    let Some(fields) = there(body, "response_fields") else { return Ok(Vec::new()) };
    let name = |field: &Value| field.as_str().map(str::to_owned).ok_or_else(wrong);
    fields.as_array().ok_or_else(wrong)?.iter().map(name).collect()
}

fn sampling(body: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let mut out = Map::new();
    for (key, whole) in SAMPLING {
        let Some(value) = there(body, key) else { continue };
        let wrong = |what: &str| Err(format!("`{key}` must be {what}"));
        match (whole, value.as_i64(), value.as_f64()) {
            // A seed of -1 is any, as llama-server has it.
            (true, Some(-1), _) if key == "seed" => {
                out.insert(key.into(), u32::MAX.into());
            }
            (true, Some(n), _) if key == "seed" => {
                out.insert(key.into(), (n & i64::from(u32::MAX)).into());
            }
            (true, Some(n), _) if i32::try_from(n).is_ok() => {
                out.insert(key.into(), n.into());
            }
            (true, ..) => return wrong("a whole number"),
            (false, _, Some(n)) if n.abs() < 1e30 => {
                out.insert(key.into(), value.clone());
            }
            (false, ..) => return wrong("a number"),
        }
    }
    if let Some(ignore) = flag(body, "ignore_eos")? {
        out.insert("ignore_eos".into(), ignore.into());
    }
    if let Some(wanted) = there(body, "logit_bias") {
        out.insert("logit_bias".into(), biases(wanted)?.into());
    }
    Ok(out)
}

/// The texts that end the reply.
fn stops(body: &Map<String, Value>) -> Result<Vec<String>, String> {
    let wrong = || "`stop` must be a string, or an array of strings".to_owned();
    match there(body, "stop") {
        None => Ok(Vec::new()),
        Some(Value::String(stop)) => Ok(vec![stop.clone()]),
        Some(Value::Array(all)) => all.iter().map(|stop| stop.as_str().map(str::to_owned).ok_or_else(wrong)).collect(),
        Some(_) => Err(wrong()),
    }
}

/// The most tokens of the reply. A negative number is llama-server's for no limit.
fn most(body: &Map<String, Value>) -> Result<Option<u32>, String> {
    for key in ["max_completion_tokens", "max_tokens", "n_predict"] {
        if let Some(value) = there(body, key) {
            let n = value.as_i64().ok_or_else(|| format!("`{key}` must be a whole number"))?;
            return Ok(u32::try_from(n).ok().or((n >= 0).then_some(u32::MAX)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(body: &Value) -> Result<Asked, String> {
        read(body.to_string().as_bytes(), Form::Chat)
    }

    #[test]
    fn a_chat_is_asked_as_llama_server_would_be() {
        let tool = json!({"type": "function", "function": {"name": "look", "parameters": {}}});
        let other = json!({"type": "function", "function": {"name": "run"}});
        let asked = chat(&json!({
            "model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [tool, other], "temperature": 0,
            "seed": 7, "stop": "END", "max_tokens": 12, "stream": true, "stream_options": {"include_usage": true},
            "tool_choice": {"type": "function", "function": {"name": "look"}}, "reasoning_effort": "none", "top_p": null,
        }))
        .unwrap();
        assert_eq!((asked.usage, asked.model.as_deref()), (true, Some("m")));
        assert_eq!((asked.request.max_tokens, asked.request.stream), (Some(12), true));
        assert_eq!(asked.request.stop, ["END"]);
        assert_eq!(
            asked.request.body,
            json!({
                "messages": [{"role": "user", "content": "hi"}], "tools": [tool], "tool_choice": "required",
                "chat_template_kwargs": {"enable_thinking": false}, "sampling": {"seed": 7, "temperature": 0},
            })
        );
    }

    #[test]
    fn several_replies_are_asked_for_one_by_one_each_with_a_seed_of_its_own() {
        let seeds = |more: Value| -> Vec<Value> {
            let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            chat(&body).unwrap().each().map(|request| request.body["sampling"]["seed"].clone()).collect()
        };
        assert_eq!(seeds(json!({})), [Value::Null]);
        assert_eq!(seeds(json!({"n": 3, "seed": 7})), [json!(7), json!(8), json!(9)]);
        // Any seed is another one each time.
        assert_eq!(seeds(json!({"n": 2, "seed": -1})), [json!(u32::MAX), json!(u32::MAX)]);
    }

    #[test]
    fn odds_are_told_of_as_many_tokens_as_are_asked_for() {
        let of = |more: Value, form: Form| {
            let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            read(body.to_string().as_bytes(), form).unwrap().request.body["likely"].clone()
        };
        for (more, form, is) in [
            (json!({}), Form::Chat, Value::Null),
            (json!({"logprobs": false, "top_logprobs": 0}), Form::Chat, Value::Null),
            (json!({"logprobs": true}), Form::Chat, json!(20)),
            (json!({"logprobs": true, "top_logprobs": 0}), Form::Chat, json!(0)),
            (json!({"logprobs": true, "top_logprobs": 3}), Form::Chat, json!(3)),
            (json!({"n_probs": 4}), Form::Chat, json!(4)),
            (json!({"logprobs": 5}), Form::Text, json!(5)),
            (json!({"n_probs": 0}), Form::Text, Value::Null),
        ] {
            assert_eq!(of(more.clone(), form), is, "{more}");
        }
    }

    #[test]
    fn words_are_asked_for_as_llama_server_would_be() {
        let asked = |path: &str, body: Value| words(path, body.to_string().as_bytes());
        let text = json!({"content": "a b", "with_pieces": true, "add_special": null, "other": 1});
        assert_eq!(asked("/tokenize", text), Ok(json!({"content": "a b", "with_pieces": true})));
        assert_eq!(asked("/detokenize", json!({"tokens": [1, 2]})), Ok(json!({"tokens": [1, 2]})));
        let chat = json!({"messages": [{"role": "user", "content": "hi"}], "temperature": 1});
        assert_eq!(asked("/apply-template", chat), Ok(json!({"messages": [{"role": "user", "content": "hi"}]})));
        for (path, body) in [
            ("/tokenize", json!({})),
            ("/tokenize", json!({"content": ["a"]})),
            ("/tokenize", json!({"content": "a", "with_pieces": 1})),
            ("/detokenize", json!({"tokens": "1"})),
            ("/detokenize", json!({"tokens": [-1]})),
            ("/detokenize", json!({"tokens": [1.5]})),
            ("/apply-template", json!({"messages": []})),
        ] {
            assert!(asked(path, body.clone()).is_err(), "{path} {body}");
        }
    }

    #[test]
    fn a_reply_that_was_begun_is_gone_on_with() {
        let begun = |message: Value| {
            let asked = chat(&json!({"messages": [{"role": "user", "content": "a"}, message]})).unwrap();
            asked.request.body["continue_final_message"].clone()
        };
        assert_eq!(begun(json!({"role": "assistant", "content": "It"})), true);
        assert_eq!(begun(json!({"role": "assistant", "tool_calls": [{}]})), Value::Null);
        assert_eq!(begun(json!({"role": "user", "content": "b"})), Value::Null);
    }

    #[test]
    fn a_reply_may_have_to_keep_to_a_schema_or_a_grammar() {
        let of = |more: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "a"}]});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            chat(&body).map(|asked| (asked.request.body["json_schema"].clone(), asked.request.body["grammar"].clone()))
        };
        let schema = json!({"type": "array"});
        let given = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
        assert_eq!(of(given), Ok((schema, Value::Null)));
        let any = of(json!({"response_format": {"type": "json_object"}})).unwrap();
        assert_eq!(any.0, json!({"type": "object"}));
        assert_eq!(of(json!({"grammar": "root ::= \"a\""})).unwrap().1, "root ::= \"a\"");
        assert_eq!(of(json!({"response_format": {"type": "text"}})), Ok((Value::Null, Value::Null)));
        assert!(of(json!({"grammar": "root ::= \"a\"", "json_schema": {}})).is_err());
    }

    #[test]
    fn what_is_wrong_or_cannot_be_is_named() {
        let cases = [
            (json!([]), "object"),
            (json!({}), "`messages`"),
            (json!({"messages": []}), "empty"),
            (json!({"messages": [{}], "n": 0}), "`n`"),
            (json!({"messages": [{}], "n": 17}), "`n`"),
            (json!({"messages": [{}], "top_logprobs": 2}), "`logprobs: true`"),
            (json!({"messages": [{}], "logprobs": 1}), "`logprobs`"),
            (json!({"messages": [{}], "logprobs": true, "top_logprobs": -1}), "`top_logprobs`"),
            (json!({"messages": [{}], "temperature": "hot"}), "`temperature` must be a number"),
            (json!({"messages": [{}], "top_k": 1.5}), "`top_k` must be a whole number"),
            (json!({"messages": [{}], "stop": [1]}), "`stop`"),
            (json!({"messages": [{}], "max_tokens": "many"}), "`max_tokens`"),
            (
                json!({"messages": [{}], "add_generation_prompt": true, "continue_final_message": true}),
                "either `add_generation_prompt`",
            ),
            (json!({"messages": [{}], "tool_choice": "perhaps"}), "perhaps"),
            (json!({"messages": [{}], "tool_choice": {"function": {"name": "x"}}}), "not among the tools"),
            (json!({"messages": [{}], "response_format": {"type": "xml"}}), "response_format"),
            (json!({"messages": [{}], "logit_bias": {"a": "b"}}), "`logit_bias`"),
            (json!({"messages": [{}], "logit_bias": [[1]]}), "`logit_bias`"),
            (json!({"messages": [{}], "logit_bias": [[1, true]]}), "`logit_bias`"),
            (json!({"messages": [{}], "post_sampling_probs": 1, "n_probs": 1}), "`post_sampling_probs`"),
            (json!({"messages": [{}], "stream": "yes"}), "`stream`"),
        ];
        for (body, part) in cases {
            let why = chat(&body).unwrap_err();
            assert!(why.contains(part), "{body}: {why}");
        }
        assert!(read(b"{", Form::Chat).unwrap_err().contains("not JSON"));
        let nested = format!(
            r#"{{"messages": [{{}}], "json_schema": {}{}}}"#,
            r#"{"items":"#.repeat(20_000),
            "}".repeat(20_000)
        );
        let why = read(nested.as_bytes(), Form::Chat).unwrap_err();
        assert!(why.contains("more than 127 levels") && !why.contains("not JSON"), "{why}");
        let grammar = format!("root ::= {}\"a\"{}", "(".repeat(20_000), ")".repeat(20_000));
        for body in [json!({"messages": [{}], "grammar": grammar}), json!({"prompt": "a", "grammar": grammar})] {
            let form = if body.get("prompt").is_some() { Form::Text } else { Form::Chat };
            let why = read(body.to_string().as_bytes(), form).unwrap_err();
            assert!(why.contains("20000 levels deep"), "{why}");
        }
        let links = (0..20_000).map(|n| (format!("d{n}"), json!({"$ref": format!("#/$defs/d{}", n + 1)})));
        let chain = json!({"$ref": "#/$defs/d0", "$defs": links.collect::<Map<_, _>>()});
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": chain}});
        for body in [json!({"messages": [{}], "json_schema": chain}), json!({"messages": [{}], "tools": [tool]})] {
            let why = chat(&body).unwrap_err();
            assert!(why.contains("more than 256 levels deep"), "{why}");
        }
        let text = read(br#"{"prompt": ["one"], "n_predict": -1, "seed": -1}"#, Form::Text).unwrap();
        assert_eq!((text.request.max_tokens, &text.request.body["prompt"]), (None, &json!("one")));
        assert_eq!(text.request.body["sampling"]["seed"], u32::MAX);
    }

    #[test]
    fn a_prompt_is_a_text_or_tokens() {
        let prompt = |prompt: Value| {
            let body = json!({"prompt": prompt, "n_predict": 4, "return_tokens": true, "n": 3}).to_string();
            read(body.as_bytes(), Form::Native)
                .map(|asked| (json!(asked.again().0), asked.again().1, asked.choices, asked.tokens))
        };
        let (again, settings, choices, tokens) = prompt(json!([1, 2, "three"])).unwrap();
        assert_eq!(
            (again, settings["n_predict"].clone(), choices, tokens),
            (json!([[1, 2, "three"]]), json!(4), 1, true)
        );
        for (given, is) in [
            (json!("one"), json!("one")),
            (json!(["one"]), json!("one")),
            (json!([[1, 2]]), json!([1, 2])),
            (json!([7]), json!([7])),
            (json!({"prompt_string": "one"}), json!("one")),
        ] {
            assert_eq!(prompt(given).unwrap().0, json!([is]));
        }
        for several in [json!(["a", "b"]), json!([[1], [2, "b"]]), json!(["a", [1]])] {
            assert_eq!(prompt(several.clone()).unwrap().0, several);
        }
        let picture = json!({"prompt_string": "<__media__>", "multimodal_data": ["AA=="]});
        for wrong in [json!([]), json!([1.5]), json!([["a", "b"]]), json!(["a", null]), json!(null), picture] {
            assert!(prompt(wrong).unwrap_err().contains("`prompt`"));
        }
    }

    #[test]
    fn each_prompt_gets_as_many_replies_as_are_wanted() {
        let body = json!({"prompt": ["a", [1]], "n": 2, "seed": 7});
        let asked = read(body.to_string().as_bytes(), Form::Text).unwrap();
        let each: Vec<_> = asked
            .each()
            .map(|request| (request.body["prompt"].clone(), request.body["sampling"]["seed"].clone()))
            .collect();
        let expected = [(json!("a"), 7), (json!("a"), 8), (json!([1]), 7), (json!([1]), 8)];
        assert_eq!(each, expected.map(|(prompt, seed)| (prompt, json!(seed))));
    }

    #[test]
    fn tokens_are_biased_as_llama_server_would() {
        let of = |biases: Value| {
            let asked = chat(&json!({"messages": [{"role": "user", "content": "a"}], "logit_bias": biases})).unwrap();
            asked.request.body["sampling"]["logit_bias"].clone()
        };
        assert_eq!(of(json!({"17": -100, " the ": false})), json!([[17, -100], [" the ", false]]));
        assert_eq!(of(json!([[17, 1.5], ["17", -1]])), json!([[17, 1.5], ["17", -1]]));
        let asked = chat(&json!({"messages": [{}], "n_probs": 2, "post_sampling_probs": true})).unwrap();
        assert_eq!(asked.request.body["as_chosen"], true);
    }
}
