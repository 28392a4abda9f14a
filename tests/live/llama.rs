//! Long recorded sessions through a real llama.cpp server with a small window.

use serde_json::Value;

use crate::support::session::{Bench, Session, Turn};
use crate::support::{check, http, say};

/// Tokens that a prompt may differ at its end from what the server holds: the opening of the reply, and the reply, which
/// the recording does not repeat; and the last token, which is evaluated always.
const TAIL: u32 = 40;

/// Plays turns, checks each, and all the originals; prints what it cost.
fn play(window: u32, settings: &[(&str, &str)], turns: &dyn Fn(&Session) -> Vec<usize>) {
    let session = Session::demo();
    let ends = turns(&session);
    let bench = Bench::start(window, settings);

    // So that nothing below passes because everything fits anyway.
    let last = *ends.last().expect("turns");
    let direct = http::post(&format!("{}/v1/chat/completions", bench.llama.url()), session.request(last, 8, true));
    assert_eq!(direct.status, 400, "directly, the server refuses it");
    assert_eq!(direct.json()["error"]["type"], "exceed_context_size_error");
    let whole = direct.json()["error"]["n_prompt_tokens"].as_u64().expect("it says how much") as u32;
    assert!(whole > 3 * window, "the session passes the window several times over: {whole} of {window}");

    let played: Vec<Turn> = ends.iter().map(|end| bench.turn(&session, *end)).collect();
    assert!(played.iter().all(|t| t.window == window), "the window is the server's");
    let evaluated: u32 = played.iter().map(|t| t.evaluated).sum();
    let ideal = ideal(&bench, &session, &played);
    for (before, turn) in played.iter().zip(&played[1..]).filter(|(_, t)| t.action == "none") {
        let kept = before.prompt.saturating_sub(TAIL);
        assert!(turn.cached >= kept, "message {}: {} of {} cached", turn.end, turn.cached, before.prompt);
    }
    let recalled = check::originals(&session, &played, &bench.windowsill);
    let messages = check::messages(&session, played.last().expect("turns"), &bench.windowsill);
    say(&format!(
        "window {window}: {} turns, history {whole} tokens, largest prompt {}, {} rewrites, evaluated {evaluated} over {ideal} \
         ideal = {:.3}; recalled {recalled:?} and {messages} messages",
        played.len(),
        played.iter().map(|t| t.prompt).max().unwrap_or(0),
        played.iter().filter(|t| t.action != "none").count(),
        f64::from(evaluated) / f64::from(ideal),
    ));
    assert!(recalled.originals >= 5 && messages == last, "{recalled:?}");
}

/// Tokens that had to be evaluated whatever is done: every new message as it was first forwarded, once.
fn ideal(bench: &Bench, session: &Session, turns: &[Turn]) -> u32 {
    let count = |turn: &Turn, from: usize| -> u32 {
        let request: Value = serde_json::from_str(&turn.forwarded).unwrap();
        let messages = request["messages"].as_array().expect("messages");
        let new = (turn.end - from).min(messages.len());
        let text: String = messages[messages.len() - new..].iter().map(Value::to_string).collect();
        let reply = http::post(&format!("{}/tokenize", bench.llama.url()), serde_json::json!({"content": text}));
        reply.json()["tokens"].as_array().expect("tokens").len() as u32
    };
    assert!(session.messages.len() >= turns.len());
    let mut sum = turns[0].prompt;
    for (before, turn) in turns.iter().zip(&turns[1..]) {
        let rewrote = turn.action != "none" && turn.action != "evict";
        sum += if rewrote { count(turn, before.end) } else { turn.prompt.saturating_sub(before.prompt) };
    }
    sum
}

#[test]
fn a_long_session_at_4096() {
    // A brief made while the next turn is on its way would only be stopped again, at the cost of two busy cores.
    let settings = [("CONTEXT_BACKGROUND", "false"), ("CONTEXT_SUMMARY_MAX_TOKENS", "64")];
    play(4096, &settings, &|s| s.turns().into_iter().take(16).collect());
}

#[test]
fn a_long_session_at_2048() {
    play(2048, &[("CONTEXT_STRATEGY", "truncate")], &|s| s.turns().into_iter().take(20).collect());
}

#[test]
fn a_long_session_at_8192() {
    play(8192, &[("CONTEXT_STRATEGY", "truncate")], &|s| s.turns().into_iter().skip(6).take(12).collect());
}

#[test]
fn other_recorded_sessions() {
    // An odd lot: 111,000 characters in one result; 370,000 characters of whitespace in arguments that are no JSON; speakers
    // in a row; a customer's service; Chinese; 13,000 tokens in one message of the assistant's.
    let mut seen = 0;
    for (name, window, turns) in [
        ("intercode-ctf-61", 4096, 4),
        ("dgm-polyglot-javascript__forth", 4096, 0),
        ("irc-rust-1", 4096, 12),
        // Its system prompt and tools alone are 4,137 tokens.
        ("taubench-airline-gpt4o-task7-trial0", 6144, 8),
        ("vcsum-zh-96", 2048, 8),
        ("aider-session-2024-08-12T205640", 2048, 3),
    ] {
        let Some(session) = Session::shared(name) else { continue };
        let bench = Bench::start(window, &[("CONTEXT_STRATEGY", "truncate")]);
        let mut ends: Vec<usize> = session.turns().into_iter().take(turns).collect();
        if turns == 0 {
            ends = vec![session.messages.len()];
        }
        let played: Vec<Turn> = ends.iter().map(|end| bench.turn(&session, *end)).collect();
        let recalled = check::originals(&session, &played, &bench.windowsill);
        say(&format!("{name}: {} turns, recalled {recalled:?}", played.len()));
        seen += 1;
    }
    assert!(seen > 0, "the excerpts have one of them");
}

/// The model cannot see, and its server alone refuses the picture. Through windowsill the model reads that there was one, and the
/// client is told.
#[test]
fn a_picture_for_a_model_that_cannot_see() {
    let session = Session::shared("inspect-images").expect("it is among the excerpts");
    let bench = Bench::start(4096, &[]);
    let request = session.request(2, 8, true);
    let direct = http::post(&format!("{}/v1/chat/completions", bench.llama.url()), &request);
    let through = http::post(&bench.windowsill.chat_url(), &request);
    assert!(direct.status >= 400, "{}", direct.text);
    assert_eq!(through.status, 200, "{}", through.text);
    let warning = through.ours("warning");
    assert!(warning.contains("picture"), "{warning}");
    let [sent]: [String; 1] = bench.relay.take().try_into().expect("sent once");
    let picture = |text: &str| text.contains("image_url") || text.contains(";base64,");
    assert!(picture(&request.to_string()) && !picture(&sent), "{sent}");
    assert!(sent.contains("this model reads no pictures; in the record]"), "{sent}");
}
