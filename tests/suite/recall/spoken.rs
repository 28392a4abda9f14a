//! Calls that the model writes as text, where its server does not take them for calls.

use super::*;

/// What a model writes that means the tool.
fn forms(id: &str) -> Vec<String> {
    vec![
        format!("<tool_call>\n{{\"name\": \"{TOOL}\", \"arguments\": {{\"id\": \"{id}\"}}}}\n</tool_call>"),
        format!("```json\n{{\"name\": \"{TOOL}\", \"arguments\": {{\"id\": \"{id}\"}}}}\n```"),
        format!("{TOOL}(id=\"{id}\", limit=5)"),
    ]
}

#[test]
fn calls_written_as_text_are_answered() {
    for form in 0..3 {
        for (write, streamed) in [(1, true), (50, true), (1 << 20, false)] {
            let (fake, proxy, sent, id) = started(Kind::LlamaServer, "");
            let text: &'static str = forms(&id).swap_remove(form).leak();
            scripted(&fake, write, move |n, _| if n == 0 { turn(text, vec![]) } else { turn("At nine.", vec![]) });
            let sent = if streamed { usage(sent) } else { sent };
            let answer = proxy.chat(&sent).ok();
            let got = if streamed { read(&answer) } else { read_whole(&answer) };
            assert_eq!((got.text.as_str(), got.finish.as_str(), got.calls.len()), ("At nine.", "stop", 0), "{text}");
            let rounds = fake.mains();
            assert_eq!(rounds.len(), 2);
            let found = results(&rounds[1]);
            assert!(found.len() == 1 && found[0].starts_with(&format!("[{id}: read_file")), "{found:?}");
            assert_eq!(faults(&sent.value(), &rounds[1].json()), Vec::<String>::new());
            // It stands in the next prompt as a call.
            let held = rounds[1].messages();
            scripted(&fake, 1 << 20, |_, _| turn("Fine.", vec![]));
            proxy.chat(&sent.assistant("At nine.").user("Thanks.")).ok();
            assert_eq!(fake.last().messages()[..held.len()], held[..]);
        }
    }
}

#[test]
fn texts_that_only_look_like_calls_reach_the_client_whole() {
    let (fake, proxy, sent, id) = started(Kind::LlamaServer, "");
    let call = forms(&id).swap_remove(0);
    for text in [
        "{\"name\": \"Anna\", \"age\": 3}".to_owned(),
        "```json\n{\"answer\": [1, 2]}\n```".to_owned(),
        "  \n[1] is the first of them".to_owned(),
        "<tool_call>\n{\"name\": \"run\", \"arguments\": {}}\n</tool_call>".to_owned(),
        "{\"name\": \"windowsill_".to_owned(),
        " ".to_owned(),
    ] {
        let said: &'static str = text.clone().leak();
        for streamed in [true, false] {
            fake.clear();
            scripted(&fake, 9, move |_, _| turn(said, vec![]));
            let sent = if streamed { sent.clone().stream() } else { sent.clone() };
            let answer = proxy.chat(&sent).ok();
            let got = if answer.text().contains("data: ") { read(&answer).text } else { read_whole(&answer).text };
            assert_eq!((got, fake.count()), (text.clone(), 1), "streamed: {streamed}");
        }
    }
    // Text behind it makes it text; and so does a client that wants no calls. These hold the tool's name.
    let with_text: &'static str = format!("{call} Well, that is how.").leak();
    let alone: &'static str = call.clone().leak();
    let forbidden = sent.clone().with("tool_choice", json!("none"));
    for (said, sent) in [(with_text, sent.clone()), (alone, forbidden)] {
        fake.clear();
        scripted(&fake, 1 << 20, move |_, _| turn(said, vec![]));
        let reply = proxy.chat(&sent).ok().json();
        assert_eq!((&reply["choices"][0]["message"]["content"], fake.count()), (&json!(said), 1));
    }
    // A stream that stops without a reason to stop keeps its text.
    fake.script(move |seen| {
        if !seen.is_main() {
            return Play::Usual;
        }
        let bytes = format!(
            "data: {}\n\ndata: [DONE]\n\n",
            event(json!({"role": "assistant", "content": "<tool_"}), Value::Null)
        );
        Play::Pieces(vec![sse_head(), chunk(bytes.as_bytes()), b"0\r\n\r\n".to_vec()])
    });
    assert!(proxy.chat(&sent.stream()).ok().text().contains("<tool_"));
}
