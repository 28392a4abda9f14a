//! Histories as coding agents send them, the same every time: a system prompt, then turns of tool steps whose results are
//! code and logs of some kilobytes, spelled with the escapes that such text has in JSON.

/// Bytes of a tool result.
const RESULT: usize = 6_000;

/// Tool steps in a turn.
const STEPS: usize = 4;

const WORDS: [&str; 24] = [
    "let", "buffer", "cursor", "return", "match", "self", "queue", "lease", "window", "flush", "struct", "error",
    "offset", "impl", "token", "render", "config", "handle", "while", "parse", "writer", "assert", "value", "branch",
];

/// A history that grows one message at a time.
pub(crate) struct History {
    seed: u64,
    steps: usize,
    result: usize,
    /// Each message as JSON.
    pub(crate) messages: Vec<String>,
    bytes: usize,
}

impl History {
    /// At least `bytes` bytes of messages. Another `seed` gives another conversation.
    pub(crate) fn new(seed: u64, bytes: usize) -> History {
        History::with_results_of(seed, bytes, RESULT.min(bytes.saturating_sub(400).max(100)))
    }

    /// As [`History::new`], with tool results of `result` bytes.
    pub(crate) fn with_results_of(seed: u64, bytes: usize, result: usize) -> History {
        let mut history = History { seed, steps: 0, result, messages: Vec::new(), bytes: 0 };
        history.push(r#"{"role":"system","content":"You are a coding agent. Use the tools."}"#.to_owned());
        while history.bytes < bytes {
            history.step();
        }
        history
    }

    /// Bytes of the messages.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds one message: what a user says next.
    pub(crate) fn say(&mut self) {
        let n = self.messages.len();
        self.push(format!(r#"{{"role":"user","content":"Go on with part {n} of task {}."}}"#, self.seed));
    }

    /// Adds one message: a short reply.
    #[allow(dead_code, reason = "not every benchmark talks")]
    pub(crate) fn reply(&mut self) {
        let n = self.messages.len();
        self.push(format!(r#"{{"role":"assistant","content":"Part {n} of task {} is done."}}"#, self.seed));
    }

    /// Adds one step of an agent: a call and its result.
    pub(crate) fn step(&mut self) {
        if self.steps.is_multiple_of(STEPS) {
            self.say();
        }
        self.steps += 1;
        let (n, seed) = (self.steps, self.seed);
        self.push(format!(
            r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"call_{n}","type":"function","function":{{"name":"read_file","arguments":"{{\"path\": \"src/part_{seed}/file_{n}.rs\", \"limit\": 200}}"}}}}]}}"#
        ));
        let text = serde_json::to_string(&code(seed << 20 | n as u64, self.result)).expect("a string is JSON");
        self.push(format!(r#"{{"role":"tool","tool_call_id":"call_{n}","content":{text}}}"#));
    }

    /// The request that carries the history.
    pub(crate) fn body(&self, stream: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes + 200);
        out.extend_from_slice(b"{\"model\":\"stub\",\"messages\":[");
        out.extend_from_slice(self.messages.join(",").as_bytes());
        out.extend_from_slice(format!("],\"max_tokens\":64,\"stream\":{stream}}}").as_bytes());
        out
    }

    fn push(&mut self, message: String) {
        self.bytes += message.len() + 1;
        self.messages.push(message);
    }
}

/// `bytes` bytes of text that looks like code: indented lines of words, numbers and marks, some of them quoted.
pub(crate) fn code(seed: u64, bytes: usize) -> String {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = move |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % n
    };
    let mut out = String::with_capacity(bytes + 128);
    let mut line = 0;
    while out.len() < bytes {
        line += 1;
        out.push_str(&"    ".repeat(next(4)));
        for _ in 0..3 + next(7) {
            out.push_str(WORDS[next(WORDS.len())]);
            out.push_str([" ", "(", "_", ".", ", ", " = ", "::"][next(7)]);
        }
        match next(8) {
            0 => out.push_str(&format!("\"part {}\");", next(1000))),
            1 => out.push_str(&format!("// line {line} of {}", next(100_000))),
            _ => out.push_str(&format!("{};", next(4096))),
        }
        out.push('\n');
    }
    out.truncate(bytes);
    out
}
