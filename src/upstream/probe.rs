//! Which server is it? Told by the shape of its answers, never by the status alone: LM Studio answers unknown paths
//! with 200 and an error, llama-server lists Ollama-looking models, koboldcpp imitates both.

use std::time::Duration;

use bytes::Bytes;
use http::header;
use serde_json::Value;

use super::error::Error;
use super::link::{Answer, Link};
use super::{Flavor, Kind, KindHint, PROBE_LIMIT};

/// The answers to the questions that tell servers apart; `Null` where there was none or it was no JSON.
#[derive(Debug, Default)]
struct Answers {
    /// `GET /props`: llama-server.
    props: Value,
    /// `GET /api/version`: Ollama.
    version: Value,
    /// `GET /v1/models`: everybody.
    models: Value,
    /// `GET /api/extra/version`: koboldcpp.
    kobold: Value,
    /// `GET /api/v1/models`, else `GET /api/v0/models`: LM Studio.
    lm_studio: Value,
    lm_studio_v0: Value,
    /// `GET /get_server_info`: SGLang.
    sglang: Value,
    /// `GET /running`: llama-swap. It tells its version where an Ollama does.
    running: Value,
    /// The answers came with `Server: llama.cpp`.
    llama_cpp: bool,
}

type Reply = Result<Answer, Error>;

/// The replies to `/props`, `/api/version`, `/v1/models`, and to the questions of koboldcpp, LM Studio (two), SGLang and llama-swap.
type Replies = [Reply; 8];

/// How long a question may take that did not come back within [`PROBE_LIMIT`], while others did.
const PATIENT_LIMIT: Duration = Duration::from_secs(12);

impl Answers {
    fn of(replies: &Replies) -> Answers {
        let [props, version, models, kobold, lm_studio, lm_studio_v0, sglang, running] = replies;
        Answers {
            llama_cpp: [props, models].iter().any(|reply| reply.as_ref().is_ok_and(says_llama_cpp)),
            props: json(props),
            version: json(version),
            models: json(models),
            kobold: json(kobold),
            lm_studio: json(lm_studio),
            lm_studio_v0: json(lm_studio_v0),
            sglang: json(sglang),
            running: json(running),
        }
    }
}

/// Asks `/props` first, since llama-server has few threads to answer with; all else together, if that did not tell.
pub(super) async fn recognize(link: &Link, hint: KindHint) -> Result<Kind, Error> {
    let ask = |path: &'static str| link.ask_once(path, PROBE_LIMIT);
    let props = match ask("/props").await {
        Err(error) if error.is_connect() => return Err(error),
        props => props,
    };
    let first =
        Answers { llama_cpp: props.as_ref().is_ok_and(says_llama_cpp), props: json(&props), ..Answers::default() };
    if first.props["build_info"].is_string()
        && let Some(kind) = kind_of(&first, hint)
    {
        return Ok(kind);
    }
    let (version, models, kobold, lm_studio, lm_studio_v0, sglang, running) = tokio::join!(
        ask("/api/version"),
        ask("/v1/models"),
        ask("/api/extra/version"),
        ask("/api/v1/models"),
        ask("/api/v0/models"),
        ask("/get_server_info"),
        ask("/running"),
    );
    let replies = [props, version, models, kobold, lm_studio, lm_studio_v0, sglang, running];
    match kind_of(&Answers::of(&replies), hint) {
        // Everybody answers `/v1/models`. A busy Ollama that answered it before it told its version would pass for a server whose
        // window cannot be set.
        None | Some(Kind::OpenAi(Flavor::Other)) if hint == KindHint::Auto && replies.iter().any(Result::is_ok) => {}
        Some(kind) => return Ok(kind),
        None => return unrecognized(link, hint, replies),
    }
    let [props, version, models, kobold, lm_studio, lm_studio_v0, sglang, running] = replies;
    let (props, version, models) = tokio::join!(
        once_more(link, "/props", props),
        once_more(link, "/api/version", version),
        once_more(link, "/v1/models", models),
    );
    let replies = [props, version, models, kobold, lm_studio, lm_studio_v0, sglang, running];
    match kind_of(&Answers::of(&replies), hint) {
        Some(kind) => Ok(kind),
        None => unrecognized(link, hint, replies),
    }
}

/// The same answer, or another one where it did not come in time.
async fn once_more(link: &Link, path: &'static str, reply: Reply) -> Reply {
    match reply {
        Err(Error::Timeout { .. }) => link.ask_once(path, PATIENT_LIMIT).await,
        other => other,
    }
}

/// A hosted or guarded API may say nothing without a key; of others, tell what stands in the way.
fn unrecognized(link: &Link, hint: KindHint, replies: Replies) -> Result<Kind, Error> {
    let late = replies[2].as_ref().err().filter(|e| matches!(e, Error::Timeout { .. })).cloned();
    let (answered, failed): (Vec<_>, Vec<_>) = replies.into_iter().partition(Result::is_ok);
    if answered.is_empty()
        && let Some(Err(error)) = failed.into_iter().next()
    {
        return Err(error);
    }
    if answered.into_iter().flatten().any(|answer| matches!(answer.status.as_u16(), 401 | 403)) {
        return Ok(match hint {
            KindHint::Ollama => Kind::Ollama,
            KindHint::LlamaServer => Kind::LlamaServer { router: false },
            KindHint::OpenAi | KindHint::Auto => Kind::OpenAi(Flavor::Other),
        });
    }
    Err(late.unwrap_or_else(|| {
        link.protocol("answers HTTP, but neither as Ollama, nor as llama-server, nor with OpenAI's /v1/models")
    }))
}

fn says_llama_cpp(answer: &Answer) -> bool {
    answer.headers.get(header::SERVER).is_some_and(|server| server.as_bytes().starts_with(b"llama.cpp"))
}

fn json(answer: &Reply) -> Value {
    let body: Option<&Bytes> = answer.as_ref().ok().map(|a| &a.body);
    body.and_then(|body| serde_json::from_slice(body).ok()).unwrap_or(Value::Null)
}

/// Pure: the kind by the answers, within what the user said it is.
fn kind_of(answers: &Answers, hint: KindHint) -> Option<Kind> {
    let any = answers.llama_cpp || [&answers.props, &answers.version, &answers.models].iter().any(|v| !v.is_null());
    let llama_server = Kind::LlamaServer { router: answers.props["role"] == "router" };
    match hint {
        KindHint::Ollama => any.then_some(Kind::Ollama),
        KindHint::LlamaServer => any.then_some(llama_server),
        KindHint::OpenAi => any.then(|| Kind::OpenAi(flavor(answers).unwrap_or(Flavor::Other))),
        KindHint::Auto => {
            let flavor = flavor(answers);
            if let Some(flavor @ (Flavor::KoboldCpp | Flavor::LlamaSwap)) = flavor {
                return Some(Kind::OpenAi(flavor));
            }
            if answers.llama_cpp || is_llama_server(answers) {
                return Some(llama_server);
            }
            if let Some(flavor) = flavor {
                return Some(Kind::OpenAi(flavor));
            }
            if answers.version["version"].is_string() {
                return Some(Kind::Ollama);
            }
            answers.models["data"].is_array().then_some(Kind::OpenAi(Flavor::Other))
        }
    }
}

fn is_llama_server(answers: &Answers) -> bool {
    let props = &answers.props;
    props["default_generation_settings"].is_object()
        || props["build_info"].is_string()
        || props["role"] == "router"
        || owned_by(&answers.models, "llamacpp")
}

/// The flavor by endpoints that no other server has, or by the owner its models name.
fn flavor(answers: &Answers) -> Option<Flavor> {
    let lm_studio = answers.lm_studio["models"].as_array().is_some_and(|models| {
        models.iter().any(|m| m["loaded_instances"].is_array() || m["max_context_length"].is_u64())
    });
    let lm_studio_v0 = answers.lm_studio_v0["data"]
        .as_array()
        .is_some_and(|models| models.iter().any(|m| m["state"].is_string() && m["max_context_length"].is_u64()));
    if answers.kobold["result"] == "KoboldCpp" {
        Some(Flavor::KoboldCpp)
    } else if answers.running["running"].is_array() || owned_by(&answers.models, "llama-swap") {
        Some(Flavor::LlamaSwap)
    } else if lm_studio || lm_studio_v0 {
        Some(Flavor::LmStudio)
    } else if answers.sglang["max_total_num_tokens"].is_u64() || owned_by(&answers.models, "sglang") {
        Some(Flavor::SgLang)
    } else if owned_by(&answers.models, "vllm") {
        Some(Flavor::Vllm)
    } else if owned_by(&answers.models, "tabbyAPI") {
        Some(Flavor::TabbyApi)
    } else {
        None
    }
}

fn owned_by(models: &Value, owner: &str) -> bool {
    models["data"].as_array().is_some_and(|models| models.iter().any(|m| m["owned_by"] == owner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn models(owner: &str) -> Value {
        json!({"object": "list", "data": [{"id": "m", "owned_by": owner}]})
    }

    #[test]
    fn servers_are_told_by_the_shape_of_their_answers() {
        let none = || json!({"error": "Unexpected endpoint or method. (GET /props)"});
        let props = || json!({"default_generation_settings": {"n_ctx": 512}, "build_info": "b1-x"});
        let cases = [
            (Answers { props: props(), models: models("llamacpp"), ..Answers::default() }, "llama-server"),
            // Asleep, loading or guarded: only the header tells.
            (Answers { llama_cpp: true, props: json!({"error": {"code": 401}}), ..Answers::default() }, "llama-server"),
            (
                Answers {
                    props: json!({"role": "router", "default_generation_settings": {"n_ctx": 0}}),
                    ..Answers::default()
                },
                "llama-server-router",
            ),
            // A stub that answers as llama-server and as Ollama.
            (
                Answers {
                    props: props(),
                    version: json!({"version": "0.12.0"}),
                    models: models("llamacpp"),
                    ..Answers::default()
                },
                "llama-server",
            ),
            (
                Answers { version: json!({"version": "0.12.0"}), models: models("library"), ..Answers::default() },
                "ollama",
            ),
            (
                Answers {
                    props: props(),
                    version: json!({"version": "0.7.0"}),
                    kobold: json!({"result": "KoboldCpp", "version": "1.90"}),
                    ..Answers::default()
                },
                "koboldcpp",
            ),
            (
                Answers {
                    props: none(),
                    version: none(),
                    kobold: none(),
                    sglang: none(),
                    models: models("organization_owner"),
                    lm_studio: json!({"models": [{"key": "m", "loaded_instances": [], "max_context_length": 8}]}),
                    ..Answers::default()
                },
                "lm-studio",
            ),
            (
                Answers {
                    props: none(),
                    models: models("organization_owner"),
                    lm_studio: none(),
                    lm_studio_v0: json!({"data": [{"id": "m", "state": "not-loaded", "max_context_length": 8}]}),
                    ..Answers::default()
                },
                "lm-studio",
            ),
            (Answers { models: models("vllm"), ..Answers::default() }, "vllm"),
            (Answers { models: models("sglang"), ..Answers::default() }, "sglang"),
            (Answers { models: models("tabbyAPI"), ..Answers::default() }, "tabbyapi"),
            (Answers { models: models("somebody"), ..Answers::default() }, "openai"),
            (
                Answers {
                    version: json!({"version": "v210", "commit": "ab", "build_date": "x"}),
                    models: models("llama-swap"),
                    running: json!({"running": []}),
                    ..Answers::default()
                },
                "llama-swap",
            ),
        ];
        for (answers, want) in cases {
            assert_eq!(kind_of(&answers, KindHint::Auto).map(Kind::as_str), Some(want), "{answers:?}");
        }
        assert_eq!(kind_of(&Answers { props: none(), version: none(), ..Answers::default() }, KindHint::Auto), None);
    }

    #[test]
    fn the_users_word_counts_where_anything_answers() {
        let answers =
            Answers { props: json!({"role": "router"}), version: json!({"version": "1"}), ..Answers::default() };
        assert_eq!(kind_of(&answers, KindHint::Ollama), Some(Kind::Ollama));
        assert_eq!(kind_of(&answers, KindHint::LlamaServer), Some(Kind::LlamaServer { router: true }));
        assert_eq!(kind_of(&answers, KindHint::OpenAi), Some(Kind::OpenAi(Flavor::Other)));
        assert_eq!(kind_of(&Answers::default(), KindHint::Ollama), None);
    }
}
