//! The sessions that are replayed: agents' sessions made here with planted facts, the same for the same seed (after
//! `session.py` of the shared bench, which plants the same facts in the same places), and recorded ones where this checkout
//! has them.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde_json::{Value, json};
use windowsill::conversation::{Message, Role, Tokens, repair};
use windowsill::measure::tokens::{self, estimate};
use windowsill::plan::Cost;
use windowsill::wire::openai_chat as wire;

use super::server::{Prompt, Segment, cost};

/// Turns of a recorded session that are replayed at most.
const LONGEST: usize = 400;

/// Evidence shorter than this stands everywhere.
const SHORTEST: usize = 24;

/// Something that is worth knowing at the end.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// The strings that say it: a planted key, the values of an answer, or the messages that are its evidence.
    needles: Vec<String>,
    /// The whole answer: where it stands, nothing else is needed.
    answer: Option<String>,
    /// How a perfect summarizer puts it.
    pub(crate) line: String,
}

impl Wanted {
    /// The share of it that a text holds.
    pub(crate) fn share(&self, text: &str) -> f64 {
        if self.answer.as_ref().is_some_and(|a| text.contains(a.as_str())) {
            return 1.0;
        }
        let found = self.needles.iter().filter(|n| text.contains(n.as_str())).count();
        found as f64 / self.needles.len().max(1) as f64
    }
}

/// A session: the whole history, and where the client asks.
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) system: Vec<Message>,
    pub(crate) tools: Option<Bytes>,
    pub(crate) body: Vec<Message>,
    /// How much of the body each request carries.
    pub(crate) ends: Vec<usize>,
    /// What the client allows for the reply.
    pub(crate) max_tokens: Option<Tokens>,
    pub(crate) wanted: Vec<Wanted>,
    /// What the server counts.
    pub(crate) costs: Vec<Cost>,
    pub(crate) system_tokens: Tokens,
    pub(crate) tool_tokens: Tokens,
    /// The prompt, were the window endless: the head, then one segment for each message.
    pub(crate) head: Prompt,
    pub(crate) segments: Prompt,
}

impl Session {
    fn new(name: String, messages: &[Value], tools: &Value, max_tokens: Option<Tokens>) -> Option<Session> {
        let mut request = json!({"messages": messages});
        if tools.as_array().is_some_and(|t| !t.is_empty()) {
            request["tools"] = tools.clone();
        }
        let conversation = wire::parse(&Bytes::from(request.to_string())).ok()?.conversation;
        let mut body = repair::repair(conversation.body, None).ok()?.body;
        let asks = |at: usize| match body[at].role {
            Role::User => true,
            Role::Tool => body.get(at + 1).is_none_or(|next| next.role != Role::Tool),
            _ => false,
        };
        let ends: Vec<usize> = (0..body.len()).filter(|at| asks(*at)).map(|at| at + 1).take(LONGEST).collect();
        body.truncate(*ends.last()?);
        let system_tokens: Tokens = conversation.system.iter().map(|m| cost(m).total()).sum();
        let mut head: Prompt = Vec::new();
        let mut tool_tokens = 0;
        if let Some(tools) = &conversation.tools {
            let text = String::from_utf8_lossy(tools).into_owned();
            tool_tokens = estimate(&text);
            head.push(Segment::new(text, tool_tokens));
        }
        head.extend(conversation.system.iter().map(Segment::of));
        Some(Session {
            name,
            costs: body.iter().map(cost).collect(),
            segments: body.iter().map(Segment::of).collect(),
            system: conversation.system,
            tools: conversation.tools,
            ends,
            max_tokens,
            wanted: Vec::new(),
            system_tokens,
            tool_tokens,
            head,
            body,
        })
    }

    /// Prompt tokens of the first messages, were the window endless: what must be evaluated once.
    pub(crate) fn ideal(&self, messages: usize) -> Tokens {
        super::server::size(&self.head) + super::server::size(&self.segments[..messages])
    }
}

/// Recorded sessions, agents' and dialogues apart; empty where this checkout has none.
pub(crate) fn recorded() -> (Vec<Session>, Vec<Session>) {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let Some(data) = ["../shared/data", "../../shared/data"].iter().map(|d| root.join(d)).find(|d| d.exists()) else {
        return (Vec::new(), Vec::new());
    };
    let Ok(entries) = std::fs::read_dir(data.join("sessions/dev")) else { return (Vec::new(), Vec::new()) };
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    paths.sort();
    let all = paths.iter().filter_map(|p| {
        let value: Value = serde_json::from_slice(&std::fs::read(p).ok()?).ok()?;
        let name = p.file_stem()?.to_string_lossy().into_owned();
        let mut session = Session::new(name, value["messages"].as_array()?, &value["tools"], None)?;
        let first = value["messages"].as_array()?.iter().take_while(|m| m["role"] == "system").count();
        ask(&mut session, &data, first);
        Some(session)
    });
    all.partition(|s| s.body.iter().filter(|m| m.role == Role::Tool).count() * 4 > s.body.len())
}

/// Adds the questions that are known for a session, as far as it is replayed.
fn ask(session: &mut Session, data: &Path, first: usize) {
    let path = data.join("questions").join(format!("{}.json", session.name));
    let questions = std::fs::read(path).ok().and_then(|b| serde_json::from_slice::<Vec<Value>>(&b).ok());
    for question in questions.unwrap_or_default() {
        let answer = question["answer"].as_str().unwrap_or_default().to_owned();
        let line = format!("{} {answer}", question["question"].as_str().unwrap_or_default());
        let wanted = if question["kind"] == "actions" {
            // Python's spelling of what should have been called: the values are between quotes.
            let quoted = answer.split('\'').skip(1).step_by(2);
            let says = |v: &str| v.len() >= 4 && v.bytes().any(|b| b.is_ascii_digit() || b.is_ascii_uppercase());
            let stands = |v: &str| session.segments.iter().any(|s| s.text.contains(v));
            let mut needles: Vec<String> = quoted.filter(|v| says(v) && stands(v)).map(str::to_owned).collect();
            needles.sort();
            needles.dedup();
            Wanted { needles, answer: None, line: answer.chars().take(400).collect() }
        } else {
            let spans = question["evidence"].as_array().cloned().unwrap_or_default();
            let index = |v: &Value| v.as_u64().map(|n| n as usize);
            let spans = spans.iter().filter_map(|s| Some((index(&s[0])?, index(&s[1])?)));
            let at: Vec<usize> = spans.flat_map(|(from, to)| from..=to).map(|at| at.saturating_sub(first)).collect();
            if at.iter().any(|at| *at >= session.body.len()) {
                continue;
            }
            let texts = at.iter().map(|at| session.body[*at].text.trim().to_owned());
            Wanted { needles: texts.filter(|t| t.len() >= SHORTEST).collect(), answer: Some(answer), line }
        };
        if !wanted.needles.is_empty() {
            session.wanted.push(wanted);
        }
    }
}

/// What is planted: the string that must survive, and how a perfect summarizer puts it.
const FACTS: [(&str, &str); 12] = [
    ("vendor/acme-legacy", "Never edit anything under vendor/acme-legacy."),
    ("47113", "The deploy token rotates on port 47113."),
    ("18437", "RETRY_BUDGET_MS = 18437 in src/net/retry.rs."),
    ("quiesce_fence", "Build error: no method named `quiesce_fence` found for struct `LeaseTable`."),
    ("bld-7f3c91", "The failing CI build id is bld-7f3c91."),
    ("cursor.rs:214", "Root cause: the cursor is compared with <= instead of < at src/ingest/cursor.rs:214."),
    ("ZQX-", "All new error codes must use the prefix ZQX-."),
    ("0x5be20c", "Snapshot checksum mismatch at offset 0x5be20c."),
    ("keep 9 spare sockets", "src/net/pool.rs:388 says: keep 9 spare sockets."),
    ("db-new-8", "The staging database is now db-new-8 (no longer db-old-3)."),
    ("Kestrel-Nine", "The release is named Kestrel-Nine."),
    ("runbook-lease-42.md", "The runbook was written to docs/runbook-lease-42.md."),
];

const SYSTEM: &str = "You are a coding agent working in a Rust repository. Use the tools to read files, search, build and test. Work in small steps, \
explain briefly what you do, and never invent file contents. Follow every standing instruction of the user until it is withdrawn. \
Keep answers short. When a build fails, read the error text exactly before you change code. ";

const USERS: [&str; 11] = [
    "Fix the ingest service: leases leak after a restart. Standing rule: never edit anything under vendor/acme-legacy. Start by reading the retry code.",
    "For later: the deploy token rotates on port 47113. Now find out why the build of the lease table fails.",
    "Good. Check the CI status of the last run through the API tool.",
    "The staging database is db-old-3. Look for socket handling in src/net.",
    "New standing rule: all new error codes must use the prefix ZQX-. Continue with the cursor bug.",
    "Now look at the snapshot log, all of it, and tell me what is wrong with it.",
    "Correction: staging moved, the database is now db-new-8, forget db-old-3. Re-run the tests.",
    "Write the runbook, then keep going through the failing modules.",
    "The release is named Kestrel-Nine. Check what else is failing.",
    "Clean up the remaining warnings module by module.",
    "Run the whole test suite again and look at the slow ones.",
];

const QUESTIONS: [&str; 6] = [
    "Which directory did I say must never be edited, and which prefix must new error codes have?",
    "On which port does the deploy token rotate, and what is the staging database called now?",
    "What exactly did the first failing build complain about, and what was the failing CI build id?",
    "What is the retry budget in src/net/retry.rs, and what does the comment in the socket pool say?",
    "At which offset was the snapshot checksum mismatch, and where was the root cause of the cursor bug?",
    "What is the release called, and which file holds the runbook? Then summarise every fact I asked you about.",
];

const WORDS: [&str; 31] = [
    "lease", "table", "cursor", "ingest", "epoch", "socket", "pool", "retry", "budget", "shard", "snapshot", "commit",
    "offset", "writer", "reader", "flush", "merge", "compact", "index", "region", "token", "node", "peer", "stream",
    "frame", "batch", "window", "probe", "queue", "drain", "state",
];

/// Requests of a session made here.
const TURNS: usize = 50;

/// How large results are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// 200 to 8000 characters.
    Steady,
    /// Three times that.
    SteadyXl,
    /// Up to 30,000, and three of 60,000 to 200,000.
    Mixed,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Steady => "steady",
            Kind::SteadyXl => "steady-xl",
            Kind::Mixed => "mixed",
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn between(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to - from + 1)
    }

    fn word(&mut self) -> &'static str {
        WORDS[self.below(WORDS.len())]
    }

    fn title(&mut self) -> String {
        let word = self.word();
        word[..1].to_uppercase() + &word[1..]
    }

    fn size(&mut self, kind: Kind) -> usize {
        match kind {
            Kind::SteadyXl => 3 * self.size(Kind::Steady),
            Kind::Steady if self.below(2) == 0 => self.between(200, 2000),
            Kind::Steady => self.between(2000, 8000),
            Kind::Mixed => match self.below(10) {
                0..5 => self.between(200, 2000),
                5..8 => self.between(2000, 8000),
                _ => self.between(8000, 30_000),
            },
        }
    }

    /// Lines of what a tool prints, about `size` characters of them.
    fn lines(&mut self, tool: &str, size: usize) -> Vec<String> {
        let (mut out, mut length) = (Vec::new(), 0);
        while length < size {
            let line = self.line(tool, out.len() + 1);
            length += line.len() + 1;
            out.push(line);
        }
        out
    }

    fn line(&mut self, tool: &str, n: usize) -> String {
        let (a, b, c, d) = (self.word(), self.word(), self.word(), self.word());
        match (tool, self.below(6)) {
            ("grep", _) => format!("src/{a}/{b}.rs:{}:    {c}.{d}({a}, {});", self.between(1, 1900), self.below(100)),
            ("http_get", _) => {
                let status = ["passed", "passed", "skipped", "failed"][self.below(4)];
                let (id, sha) = (self.between(1000, 99_999), self.below(usize::MAX));
                format!(
                    r#"{{"id": "run-{id}", "status": "{status}", "branch": "{a}/{b}", "duration_ms": {}, "steps": ["{c}", "{d}"], "sha": "{sha:016x}"}},"#,
                    self.between(100, 99_999)
                )
            }
            ("run_build", 0 | 1) => {
                format!("   Compiling {a}-{b} v0.{}.{} (/repo/crates/{c})", self.between(1, 30), self.below(10))
            }
            ("run_build", 2) => {
                format!(
                    "warning: unused variable: `{a}`\n  --> src/{b}/{c}.rs:{}:{}",
                    self.between(1, 900),
                    self.between(1, 80)
                )
            }
            ("run_build", 3 | 4) => format!("test {a}::{b}_{c} ... ok"),
            ("run_build", _) => {
                format!(
                    "[{}:{}.{}] {a} {b} finished in {} ms",
                    self.between(10, 59),
                    self.between(10, 59),
                    self.between(100, 999),
                    self.below(9999)
                )
            }
            (_, 0) => format!("{n:5}      let {a}_{b} = self.{c}.{d}({})?;", self.below(9999)),
            (_, 1) => format!("{n:5}      if {a}.len() > {} {{", self.between(1, 512)),
            (_, 2) => format!(
                "{n:5}          return Err(Error::{}{}({}));",
                self.title(),
                self.title(),
                self.between(100, 999)
            ),
            (_, 3) => format!("{n:5}      }}"),
            (_, 4) => format!("{n:5}  pub fn {a}_{b}(&mut self, {c}: &{}) -> Result<()> {{", self.title()),
            _ => format!("{n:5}      // {a} {b} before {c} {d}"),
        }
    }
}

/// What the step of this number (from 1) prints, if it plants a fact.
fn planted(step: usize) -> Option<(&'static str, &'static str)> {
    Some(match step {
        1 => ("read_file", "  812  pub const RETRY_BUDGET_MS: u64 = 18437;"),
        5 => (
            "run_build",
            "error[E0599]: no method named `quiesce_fence` found for struct `LeaseTable` in the current scope\n  --> src/lease/table.rs:91:14",
        ),
        10 => {
            ("http_get", r#"{"id": "bld-7f3c91", "status": "failed", "branch": "lease/epoch", "duration_ms": 91022},"#)
        }
        14 => ("grep", "src/net/pool.rs:388:    // HACK(mlo): keep 9 spare sockets"),
        23 => ("run_build", "[12:41.882] ERROR checksum mismatch at offset 0x5be20c, snapshot rejected"),
        _ => return None,
    })
}

/// A session from a file with a list of messages, as `session.py --dump` writes it.
pub(crate) fn given(path: &str) -> Option<Session> {
    let messages: Vec<Value> = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let mut session = Session::new(path.to_owned(), &messages, &tools(), Some(512))?;
    session.wanted = wanted();
    Some(session)
}

fn wanted() -> Vec<Wanted> {
    let one = |(key, line): &(&str, &str)| Wanted {
        needles: vec![(*key).to_owned()],
        answer: None,
        line: (*line).to_owned(),
    };
    FACTS.iter().map(one).collect()
}

/// A session made here. Seeds below 11 are for checking.
pub(crate) fn made(kind: Kind, seed: u64) -> Session {
    let mut r = Random(seed);
    let mut messages = vec![json!({"role": "system", "content": SYSTEM.repeat(2)})];
    let work = TURNS - QUESTIONS.len();
    let bounds: Vec<usize> =
        (0..=USERS.len()).map(|i| (i as f64 * work as f64 / USERS.len() as f64).round() as usize).collect();
    for i in 0..work {
        if let Some(at) = bounds[..USERS.len()].iter().position(|b| *b == i) {
            messages.push(json!({"role": "user", "content": USERS[at]}));
        }
        match bounds.iter().position(|b| *b == i + 1) {
            Some(5) => messages.push(json!({"role": "assistant", "content":
                "Root cause found: the cursor is compared with <= instead of < at src/ingest/cursor.rs:214. Fixed."})),
            Some(_) => messages.push(json!({"role": "assistant", "content":
                format!("Done with this part: the {} {} path is clear now. Next I need your word.", r.word(), r.word())})),
            None => step(&mut r, kind, i + 1, bounds[7] == i, &mut messages),
        }
    }
    for (at, question) in QUESTIONS.iter().enumerate() {
        if at > 0 {
            messages.push(json!({"role": "assistant", "content": "Noted; see above."}));
        }
        messages.push(json!({"role": "user", "content": question}));
    }
    let name = format!("{}-{seed}", kind.name());
    let mut session = Session::new(name, &messages, &tools(), Some(512)).expect("what is made here is well-formed");
    session.wanted = wanted();
    let whole = super::server::text(&session.segments);
    let missing: Vec<&str> = FACTS.iter().map(|f| f.0).filter(|key| !whole.contains(key)).collect();
    assert!(missing.is_empty(), "not planted: {missing:?}");
    session
}

/// One step of the agent: a call or two and their results.
fn step(r: &mut Random, kind: Kind, number: usize, runbook: bool, messages: &mut Vec<Value>) {
    let huge = match (kind, number) {
        (Kind::Mixed, 18) => Some(60_000),
        (Kind::Mixed, 23) => Some(120_000),
        (Kind::Mixed, 35) => Some(200_000),
        (Kind::Steady, 23) => Some(6_000),
        (Kind::SteadyXl, 23) => Some(20_000),
        _ => None,
    };
    let fact = planted(number);
    let any = ["read_file", "read_file", "grep", "run_build", "http_get", "list_dir"][r.below(6)];
    let output = if huge.is_some() { "run_build" } else { fact.map_or(any, |(tool, _)| tool) };
    let size = huge.unwrap_or_else(|| r.size(kind));
    let path = format!("src/{}/{}.rs", r.word(), r.word());
    let (tool, arguments) = match output {
        _ if runbook => {
            let content = format!("# Runbook\n{}", r.lines("read_file", 900).join("\n"));
            ("write_file", json!({"path": "docs/runbook-lease-42.md", "content": content}))
        }
        _ if huge.is_some() => ("read_file", json!({"path": "logs/snapshot.log"})),
        "grep" => ("grep", json!({"pattern": r.word(), "path": "src"})),
        "run_build" => ("run_build", json!({"args": "--all"})),
        "list_dir" => ("list_dir", json!({"path": "src"})),
        "http_get" => ("http_get", json!({"url": "http://ci/api/runs"})),
        _ => ("read_file", json!({"path": path})),
    };
    let mut lines = match output {
        _ if runbook => vec!["ok, 23 lines written".to_owned()],
        "list_dir" => (0..12).map(|_| format!("{}.rs", r.word())).collect(),
        _ => r.lines(output, size),
    };
    if let Some((_, line)) = fact.filter(|_| !runbook) {
        let at = if number == 10 { 0 } else { lines.len() * 6 / 10 };
        lines.insert(at, line.to_owned());
    }
    let call = |id: String, name: &str, arguments: &Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments.to_string()}});
    let mut calls = vec![call(format!("call_{number:04}"), tool, &arguments)];
    let second = huge.is_none() && !runbook && r.below(5) == 0;
    if second {
        let items = json!({"items": format!("fix {}\nfix {}", r.word(), r.word())});
        calls.push(call(format!("call_{number:04}b"), "todo_write", &items));
    }
    let said = [Value::Null, json!(format!("I'll look at {path} next.")), json!("Checking.")];
    messages.push(json!({"role": "assistant", "content": said[r.below(3)], "tool_calls": calls}));
    messages.push(json!({"role": "tool", "tool_call_id": format!("call_{number:04}"), "content": lines.join("\n")}));
    if second {
        messages.push(json!({"role": "tool", "tool_call_id": format!("call_{number:04}b"), "content": "updated"}));
    }
}

fn tools() -> Value {
    let tool = |name: &str, about: &str, properties: &[(&str, &str)]| {
        let of: serde_json::Map<String, Value> =
            properties.iter().map(|(k, v)| ((*k).to_owned(), json!({"type": "string", "description": v}))).collect();
        let required: Vec<&str> = properties.iter().map(|p| p.0).collect();
        json!({"type": "function", "function": {"name": name, "description": about, "parameters":
            {"type": "object", "properties": of, "required": required}}})
    };
    let path = ("path", "path relative to the repository root");
    json!([
        tool("read_file", "Read a file from the repository and return its text with line numbers.", &[path]),
        tool("write_file", "Create or overwrite a file.", &[path, ("content", "the whole new text")]),
        tool(
            "grep",
            "Search the repository with a regular expression.",
            &[("pattern", "regular expression"), ("path", "folder to search")]
        ),
        tool("list_dir", "List a directory.", &[("path", "folder")]),
        tool("run_build", "Run cargo build and return its output.", &[("args", "extra arguments")]),
        tool("run_tests", "Run cargo test and return its output.", &[("filter", "test name filter")]),
        tool("http_get", "GET a JSON document from the CI server.", &[("url", "address")]),
        tool("todo_write", "Replace the task list.", &[("items", "one item per line")]),
    ])
}

/// Tokens of a text of ours.
pub(crate) fn message_tokens(text: &str) -> Tokens {
    tokens::message(text)
}
