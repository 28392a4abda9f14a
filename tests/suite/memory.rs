//! What a large body takes in memory, in every dialect: windowsill's own binary before a stub, and the most that it was
//! resident.
#![cfg(target_os = "linux")]

#[path = "../../benches/support/client.rs"]
#[allow(dead_code, reason = "the benchmark uses the rest")]
mod client;
#[path = "../../benches/support/history.rs"]
#[allow(dead_code, reason = "the benchmark uses the rest")]
mod history;
#[path = "../../benches/support/process.rs"]
#[allow(dead_code, reason = "the benchmark uses the rest")]
mod process;
#[path = "../../benches/support/stub.rs"]
mod stub;

use std::net::SocketAddr;

use client::Client;
use history::{History, code};
use process::Proxy;

/// Near the default limit of 64 MiB.
const BODY: usize = 60_000_000;

/// As much in the other dialects, which have many bodies to try.
const OTHERS: usize = 40_000_000;

/// So large that nothing is ever rewritten.
const ENDLESS: usize = 64_000_000;

/// A window that such a body passes many times.
const SMALL: usize = 32_768;

/// The most that a body may take in memory, in times its size.
const MOST: f64 = 4.0;

/// The same for a client of Ollama's before an Ollama, whose messages are small: what is said in the server's words is there,
/// too.
const MOST_SAID_TWICE: f64 = 4.5;

/// What a body of tool results of `result` bytes takes before a server with this window, in times its size.
fn taken(window: usize, result: usize) -> f64 {
    let body = History::with_results_of(1, BODY, result).body(false);
    let times = taken_by(stub::start(window).unwrap(), "/v1/chat/completions", &body);
    eprintln!("results of {result} bytes, a window of {window}: {times:.2} times the body");
    times
}

/// What a body takes that a client sends to this path.
fn taken_by(upstream: SocketAddr, path: &str, body: &[u8]) -> f64 {
    let (proxy, _) = Proxy::first_answer(upstream, &History::new(2, 100).body(false)).unwrap();
    proxy.rest();
    let before = proxy.resident().unwrap();
    Client::new(proxy.address, false).ask(path, body).unwrap();
    // The record is written after the answer where nothing left the prompt.
    proxy.rest();
    (proxy.peak().unwrap() - before) * 1e6 / body.len() as f64
}

/// A dialect: where its requests go, and how it spells a history.
struct Dialect {
    path: &'static str,
    /// What stands around all messages.
    around: [&'static str; 2],
    /// What stands around the text of a message of the user.
    said: [&'static str; 2],
    /// The call and its result around the texts: `N` is the number of the step.
    step: [&'static str; 2],
    /// What stands around the content parts of one message, and around the text of each.
    parts: [&'static str; 4],
    /// Bytes of each.
    part: usize,
}

const ANTHROPIC: Dialect = Dialect {
    path: "/v1/messages",
    around: [r#"{"model":"stub","max_tokens":64,"messages":["#, "]}"],
    said: [r#"{"role":"user","content":"#, "}"],
    step: [
        r#"{"role":"assistant","content":[{"type":"tool_use","id":"call_N","name":"read_file","input":{"path":"src/file_N.rs","limit":200}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_N","content":"#,
        "}]}",
    ],
    parts: [
        r#"{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://x/y.png"}}"#,
        r#",{"type":"text","text":"#,
        "}",
        "]}",
    ],
    part: 250,
};

const RESPONSES: Dialect = Dialect {
    path: "/v1/responses",
    around: [r#"{"model":"stub","max_output_tokens":64,"input":["#, "]}"],
    said: [r#"{"role":"user","content":"#, "}"],
    step: [
        r#"{"type":"function_call","call_id":"call_N","name":"read_file","arguments":"{\"path\": \"src/file_N.rs\", \"limit\": 200}"},{"type":"function_call_output","call_id":"call_N","output":"#,
        "}",
    ],
    parts: [
        r#"{"role":"user","content":[{"type":"input_image","image_url":"data:image/gif;base64,R0lGODlhAQABAAAAACw="}"#,
        r#",{"type":"input_text","text":"#,
        "}",
        "]}",
    ],
    part: 250,
};

const OLLAMA: Dialect = Dialect {
    path: "/api/chat",
    around: [r#"{"model":"stub","stream":false,"messages":["#, "]}"],
    said: [r#"{"role":"user","content":"#, "}"],
    step: [
        r#"{"role":"assistant","content":"","tool_calls":[{"function":{"name":"read_file","arguments":{"path":"src/file_N.rs","limit":200}}}]},{"role":"tool","tool_name":"read_file","content":"#,
        "}",
    ],
    // Content is one text there: the parts are pictures, as far as anybody looks.
    parts: [r#"{"role":"user","content":"","images":["iVBORw0KGgo=""#, ",", "", "]}"],
    part: 1_000,
};

impl Dialect {
    /// One message.
    fn huge(&self) -> String {
        let text = serde_json::to_string(&code(1, OTHERS)).unwrap();
        [self.around[0], self.said[0], &text, self.said[1], self.around[1]].concat()
    }

    /// Calls and their results, `result` bytes each.
    fn steps(&self, result: usize) -> String {
        let mut out = [self.around[0], self.said[0], "\"Go on.\"", self.said[1]].concat();
        let text = serde_json::to_string(&code(1, result)).unwrap();
        for n in 1.. {
            out.push(',');
            out.push_str(&self.step[0].replace('N', &n.to_string()));
            out.push_str(&format!("\"{n} {}", &text[1..]));
            out.push_str(self.step[1]);
            if out.len() > OTHERS {
                break;
            }
        }
        out + self.around[1]
    }

    /// One message of an image and many parts.
    fn parts(&self) -> String {
        let mut out = [self.around[0], self.parts[0]].concat();
        let text = serde_json::to_string(&code(1, self.part)).unwrap();
        for n in 1.. {
            out.push_str(self.parts[1]);
            out.push_str(&format!("\"{n} {}", &text[1..]));
            out.push_str(self.parts[2]);
            if out.len() > OTHERS {
                break;
            }
        }
        out + self.parts[3] + self.around[1]
    }

    /// Whether each kind of body takes at most what it may, before such a server.
    fn takes_at_most(&self, start: fn(usize) -> std::io::Result<SocketAddr>, small_messages: f64) {
        let bodies = [
            ("one message", ENDLESS, self.huge(), MOST),
            ("one result", SMALL, self.steps(OTHERS), MOST),
            ("results of 1 KB", ENDLESS, self.steps(1_000), small_messages),
            ("content parts", ENDLESS, self.parts(), MOST),
        ];
        let times = bodies.map(|(what, window, body, most)| {
            let times = taken_by(start(window).unwrap(), self.path, body.as_bytes());
            eprintln!("{}, {what}: {times:.2} times the body", self.path);
            (times, most)
        });
        assert!(times.iter().all(|(times, most)| times <= most), "{times:?}");
    }
}

#[test]
fn a_body_of_one_huge_result_takes_at_most_four_times_its_size() {
    assert!(taken(SMALL, BODY) <= MOST);
}

#[test]
fn a_body_of_many_results_takes_at_most_four_times_its_size() {
    assert!(taken(SMALL, 100_000) <= MOST);
}

/// Nothing leaves the prompt here: all of them go to the server and into the record.
#[test]
fn a_body_of_many_small_messages_takes_at_most_four_times_its_size() {
    assert!(taken(ENDLESS, 1_000) <= MOST);
}

#[test]
fn a_body_of_anthropics_takes_at_most_four_times_its_size() {
    ANTHROPIC.takes_at_most(stub::start, MOST);
}

#[test]
fn a_body_of_the_responses_api_takes_at_most_four_times_its_size() {
    RESPONSES.takes_at_most(stub::start, MOST);
}

#[test]
fn a_body_of_ollamas_takes_at_most_four_times_its_size() {
    OLLAMA.takes_at_most(stub::start, MOST);
}

#[test]
fn a_body_of_ollamas_before_an_ollama_takes_little_more() {
    OLLAMA.takes_at_most(stub::ollama, MOST_SAID_TWICE);
}
