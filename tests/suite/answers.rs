//! Recorded dialogues with known questions (`shared/data`): whatever was folded or cleared, a model that recalls what it is
//! told of gets every answer's source text back, word for word.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::planning::sessions::{at_least, shared};
use super::support::script::{TOOL, tools_of, whole_reply};
use super::support::*;

/// Turns in which a question may be read up on.
const TURNS: usize = 16;

/// How long a reply may take: a new history of a megabyte, with all that is read in it, takes 5 s on an idle machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Calls that the model makes at once.
const CALLS: usize = 2;

/// A text without white space: pages break lines where they must.
fn bare(text: &str) -> String {
    text.split_whitespace().collect()
}

/// What a message says: its text, and the arguments of its calls.
fn says(message: &Value) -> Vec<String> {
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let arguments = calls.filter_map(|c| c["function"]["arguments"].as_str());
    let all = std::iter::once(text(message)).chain(arguments.map(str::to_owned));
    all.map(|t| bare(&t)).filter(|t| !t.is_empty()).collect()
}

/// A model that knows which messages it wants, and reads them where the prompt says they are.
struct Reader {
    /// The messages it wants, by number.
    wanted: BTreeMap<usize, Value>,
    got: BTreeSet<usize>,
    /// What it asked for last: an id, the first line.
    asked: Vec<(String, u64)>,
    /// What came, page by page.
    read: BTreeMap<String, String>,
    /// Where to read on.
    next: BTreeMap<String, u64>,
    /// Results it was refused for want of room.
    full: bool,
}

impl Reader {
    /// Takes in a prompt, and says what it wants to read now.
    fn turn(&mut self, seen: &Seen) -> Vec<Value> {
        let prompt = seen.messages();
        self.full = false;
        let results = prompt.iter().rev().take_while(|m| m["role"] == "tool").count();
        let asked = std::mem::take(&mut self.asked);
        if results == asked.len() {
            for ((id, _), result) in asked.into_iter().zip(&prompt[prompt.len() - results..]) {
                self.page(id, &text(result));
            }
        }
        for (at, message) in &self.wanted {
            let with_brief = format!("{}\n\n[windowsill brief of ", text(message));
            let stands = prompt.contains(message) || prompt.iter().any(|m| text(m).starts_with(&with_brief));
            if stands || self.has(*at, message) {
                self.got.insert(*at);
            }
        }
        if self.full || !tools_of(seen).contains(&TOOL.to_owned()) {
            return Vec::new();
        }
        let ids = self.ids(&prompt);
        self.asked = ids.into_iter().take(CALLS).map(|id| (id.clone(), *self.next.get(&id).unwrap_or(&1))).collect();
        self.asked.iter().map(|(id, offset)| json!({"id": id, "offset": offset})).collect()
    }

    /// One page of what was asked for: the head, lines, and where it goes on.
    fn page(&mut self, id: String, page: &str) {
        let Some((head, rest)) = page.split_once('\n') else {
            self.full = page.contains("no room");
            return;
        };
        assert!(head.starts_with(&format!("[{id}")), "{head}");
        let (body, more) = match rest
            .rsplit_once("\n[")
            .filter(|(_, end)| end.contains("more lines: call again with offset="))
        {
            Some((body, end)) => (body, end.split("offset=").nth(1).and_then(|n| n.trim_end_matches(']').parse().ok())),
            None => (rest, None),
        };
        self.read.entry(id.clone()).or_default().push_str(&bare(body));
        self.next.insert(id, more.unwrap_or(u64::MAX));
    }

    /// Whether a message was read whole: under its record's id, or behind its number among others.
    fn has(&self, at: usize, message: &Value) -> bool {
        let says = says(message);
        let in_text = |text: &str| says.iter().all(|s| text.contains(s.as_str()));
        let mine = at.to_string();
        self.read.iter().any(|(id, read)| match id.starts_with('r') || *id == mine {
            true => in_text(read),
            false => {
                let after = read.split_once(&format!("[{at}]")).map_or("", |(_, after)| after);
                in_text(after.split(&format!("[{}]", at + 1)).next().unwrap_or("")) && !after.is_empty()
            }
        })
    }

    /// Where what is missing can be read: the id that stands in a message's place, or its numbers where the brief holds them.
    fn ids(&self, prompt: &[Value]) -> Vec<String> {
        let folded = prompt.iter().map(text).find_map(|t| {
            let (_, after) = t.split_once("[windowsill brief of ")?;
            let (from, to) = after.split_once(", messages ")?.1.split(')').next()?.split_once('-')?;
            Some(from.parse::<usize>().ok()?..=to.parse::<usize>().ok()?)
        });
        let mut ids: Vec<String> = Vec::new();
        let mut run: Option<(usize, usize)> = None;
        let told = |run: Option<(usize, usize)>, ids: &mut Vec<String>| {
            if let Some((from, to)) = run {
                ids.push(if from == to { from.to_string() } else { format!("{from}-{to}") });
            }
        };
        for (at, message) in self.wanted.iter().filter(|(at, _)| !self.got.contains(at)) {
            let id = &message["tool_call_id"];
            let place = prompt.iter().find(|m| id.is_string() && m["tool_call_id"] == *id).map(text);
            let named = place.as_deref().and_then(|t| super::record::ids(t.as_bytes()).into_iter().next());
            if let Some(id) = named {
                ids.push(id);
            } else if folded.as_ref().is_some_and(|f| f.contains(at)) || message["tool_calls"].is_array() {
                match &mut run {
                    Some((_, to)) if *to + 1 == *at => *to = *at,
                    _ => told(run.replace((*at, *at)), &mut ids),
                }
            }
        }
        told(run, &mut ids);
        // What is being read is read on first.
        ids.retain(|id| self.next.get(id) != Some(&u64::MAX));
        let begun =
            self.next.iter().filter(|(id, next)| **next != u64::MAX && !ids.contains(id)).map(|(id, _)| id.clone());
        begun.chain(ids.clone()).collect()
    }
}

/// Numbers of messages that a question's answer stands in.
fn evidence(question: &Value) -> BTreeSet<usize> {
    let spans = question["evidence"].as_array().into_iter().flatten();
    let number = |v: &Value| v.as_u64().map(|n| n as usize);
    let span = |v: &Value| match v.as_array() {
        Some(ends) => Some(number(&ends[0])?..=number(&ends[1])?),
        None => number(v).map(|n| n..=n),
    };
    spans.filter_map(span).flatten().collect()
}

/// Asks one question at the end of a session; the numbers of messages whose text never came, of how many.
fn ask(fake: &Fake, proxy: &TestProxy, session: &Chat, leading: usize, question: &Value) -> (Vec<usize>, usize) {
    let wanted: BTreeMap<usize, Value> = evidence(question)
        .into_iter()
        .filter_map(|at| Some((at.checked_sub(leading)?, session.messages[at].clone())))
        .filter(|(_, m)| !says(m).is_empty())
        .collect();
    let (all, count) = (wanted.keys().copied().collect::<BTreeSet<_>>(), wanted.len());
    let reader = Arc::new(Mutex::new(Reader {
        wanted,
        got: BTreeSet::new(),
        asked: Vec::new(),
        read: BTreeMap::new(),
        next: BTreeMap::new(),
        full: false,
    }));
    let theirs = Arc::clone(&reader);
    fake.script(move |seen| {
        if !seen.is_main() {
            return Play::Usual;
        }
        let asked = theirs.lock().unwrap().turn(seen);
        let calls: Vec<(&str, String, String)> =
            asked.iter().zip(["call_a", "call_b"]).map(|(a, id)| (id, TOOL.to_owned(), a.to_string())).collect();
        Play::Json(200, whole_reply(seen, 0, if calls.is_empty() { "Let me think." } else { "" }, &calls))
    });
    let mut sent = session.clone().user(question["question"].as_str().unwrap_or("What was said?"));
    for _ in 0..TURNS {
        let reply = proxy.begin(&sent).patiently(PATIENCE).answer().ok().json();
        if reader.lock().unwrap().got == all {
            break;
        }
        sent = sent.assistant(reply["choices"][0]["message"]["content"].as_str().unwrap_or("")).user("Read on.");
    }
    let reader = reader.lock().unwrap();
    if reader.got != all {
        eprintln!(
            "to read on: {:?}; bytes read: {:?}; the last prompt:\n{}",
            reader.next,
            reader.read.iter().map(|(k, v)| (k.clone(), v.len())).collect::<Vec<_>>(),
            fake.last()
                .messages()
                .iter()
                .map(|m| m.to_string().chars().take(200).collect::<String>())
                .collect::<Vec<_>>()
                .join("\n")
        );
        for at in all.difference(&reader.got) {
            eprintln!("never came: {at} {:?}", reader.wanted[at].to_string().chars().take(300).collect::<String>());
        }
    }
    (all.difference(&reader.got).copied().collect(), count)
}

#[test]
fn every_answers_source_comes_back() {
    let read = |path: &Path| -> Value { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
    let mut files: Vec<_> = std::fs::read_dir(shared("questions")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let (mut asked, mut answered, mut sources, mut lost) = (0, 0, 0, Vec::new());
    for file in files {
        let questions = read(&file);
        let questions: Vec<&Value> = questions.as_array().unwrap().iter().filter(|q| !evidence(q).is_empty()).collect();
        let name = questions[0]["session"].as_str().unwrap().to_owned();
        let recorded = read(&shared("sessions/dev").join(format!("{name}.json")));
        let messages = recorded["messages"].as_array().unwrap().clone();
        let leading = messages.iter().take_while(|m| m["role"] == "system").count();
        let session = Chat { messages, ..chat() }.tools();
        let window = if name.starts_with("taubench") { 6144 } else { 8192 };
        let fake = Fake::start(Kind::LlamaServer, window);
        let proxy = TestProxy::with(&[fake.url()], "[context]\nbackground = false\nfold_at = \"line\"\n");
        // The longest has a megabyte of history: some of its questions are enough.
        let step = if questions.len() > 40 { 24 } else { 1 };
        let started = std::time::Instant::now();
        for question in questions.into_iter().step_by(step) {
            let (missing, count) = ask(&fake, &proxy, &session, leading, question);
            asked += 1;
            sources += count;
            answered += usize::from(missing.is_empty());
            if !missing.is_empty() {
                lost.push(format!("{name}: {} lacks {missing:?}", question["question"]));
            }
        }
        eprintln!("{name}: {asked} so far, {:.1} s", started.elapsed().as_secs_f64());
    }
    eprintln!("{answered} of {asked} questions: all of their {sources} source messages came back");
    let least = at_least(&shared("questions"), 81, 2);
    assert!(asked >= least && lost.is_empty(), "{answered} of {asked}: {lost:#?}");
}
