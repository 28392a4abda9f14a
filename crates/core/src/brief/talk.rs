//! A chat without work: of what a person said, and of what the other one said where both say about as much, the sentences that say
//! most for their length. A sentence with words that stand nowhere else in the conversation says what nobody can guess; a greeting,
//! a thank-you or a nod is made of words that stand everywhere.
//!
//! They come from the messages at each fold, so that nothing is lost by being folded twice.

use std::collections::{HashMap, HashSet};

use super::words::sentences;
use super::work::{HEADING, Quote, Quoted, Work, label};
use super::{Facts, Item, Part, Section, render, statements};
use crate::conversation::{Message, Role, person};
use crate::passage::{indexed, rarity, stamp};
use crate::preview::clean::floor;

/// A longer message of an assistant (bytes) explains: what it concludes is kept, and not its words.
pub(super) const SPOKEN_MOST: usize = 800;

/// Bytes of sentences that are held at most: more than any brief could show.
const MOST: usize = 24_000;

/// Sentences come from the newest so many bytes of what is folded. Bounds the time a fold takes.
const READ: usize = 1 << 18;

/// A longer sentence, in bytes, is no sentence but something pasted.
const LONGEST: usize = 600;

/// A sentence of fewer different words says nothing by itself.
const LEAST_WORDS: usize = 4;

/// Bytes that a sentence counts for beyond its own: of two that say as much for their length, the longer one is understood by itself.
const BY_ITSELF: usize = 20;

/// How much more each of up to three numbers in a sentence is worth: nobody can guess a date, a price or an age.
const NUMBER: f64 = 0.2;

/// Whether these messages are a talk of two who say about as much: no work is done, and one asks no more than the other tells.
pub(super) fn is_talk<'m>(messages: impl Iterator<Item = &'m Message>) -> bool {
    shares(messages).is_some_and(|(own, others)| others <= own.saturating_mul(2))
}

/// Bytes that a person and the other one say in a chat; `None` where work is done.
fn shares<'m>(messages: impl Iterator<Item = &'m Message>) -> Option<(usize, usize)> {
    let (mut own, mut others) = (0_usize, 0_usize);
    for message in messages {
        match message.role {
            Role::User => own += message.text.len(),
            Role::Assistant if message.calls.is_empty() => others += message.text.len(),
            Role::System => {}
            _ => return None,
        }
    }
    Some((own, others))
}

/// Quotes what was said in the `folded` messages (indices, in order) of a chat, and nothing of it that `said` holds. What a person
/// states stands by itself, as the sentences that state it. False where work is done; then nothing is changed.
pub fn retell(facts: &mut Facts, body: &[Message], folded: &[usize], said: &[String]) -> bool {
    let all = || folded.iter().filter_map(|at| Some((*at, body.get(*at)?)));
    // What a client shows as examples of how to answer, nobody said.
    let has_examples = all().any(|(_, message)| person::ends_examples(message));
    if has_examples || shares(all().map(|(_, message)| message)).is_none() {
        return false;
    }
    let both = is_talk(all().map(|(_, message)| message));
    let spoken: Vec<(usize, String)> = all().filter_map(|(at, message)| Some((at, words(message, both)?))).collect();
    // Sentence by sentence first: looking through a long chat for each of some hundred items takes seconds.
    let each: HashSet<&str> = spoken.iter().flat_map(|(_, words)| sentences(words)).collect();
    let is_quoted = |text: &str| {
        let plain = statements::unmarked(text);
        let mut parts = plain.split(['…', '\n']).map(str::trim).filter(|part| !part.is_empty());
        let said_as_it_is = |part: &str| sentences(part).iter().all(|sentence| each.contains(sentence));
        parts.all(|part| said_as_it_is(part) || spoken.iter().any(|(_, words)| words.contains(part)))
    };
    if both {
        facts.sections[Part::Said as usize] = Section::default();
    }
    let own = &mut facts.sections[Part::User as usize].items;
    own.retain_mut(|item| {
        if !is_quoted(&item.text) {
            return true;
        }
        let states = !item.stated.is_empty();
        if states {
            *item = stating(item);
        }
        states
    });
    drop(each);
    let stands: Vec<&str> = own.iter().map(|item| item.text.as_str()).chain(said.iter().map(String::as_str)).collect();
    facts.work = quotes(body, spoken, &stands);
    true
}

/// A person's words, those sentences alone that state something. What took the place of an older statement is marked as such, and
/// stays whole.
fn stating(item: &Item) -> Item {
    let stated: Vec<&str> = item.stated.iter().map(statements::Stated::text).collect();
    let short = Item::new(Part::User, stated.join(" … "), item.times);
    let is_marked = statements::unmarked(&item.text) != item.text;
    if is_marked || short.stated.len() < item.stated.len() || short.text.len() >= item.text.len() {
        return item.clone();
    }
    short
}

/// What somebody says in a message; of the other one, where `both` are quoted.
fn words(message: &Message, both: bool) -> Option<String> {
    let text = render::without_brief(&message.text);
    let words = match message.role {
        Role::User => match person::said(&text) {
            person::Said::Person(words) => words.into_owned(),
            _ => return None,
        },
        Role::Assistant if both && text.len() <= SPOKEN_MOST => text,
        _ => return None,
    };
    (!words.trim().is_empty()).then_some(words)
}

/// A sentence that may be quoted.
struct Sentence {
    value: f64,
    text: usize,
    range: std::ops::Range<usize>,
}

fn quotes(body: &[Message], spoken: Vec<(usize, String)>, stands: &[&str]) -> Work {
    let mut read = 0;
    let within = spoken.iter().rev().take_while(|(_, words)| {
        read += words.len();
        read <= READ
    });
    let first = spoken.len() - within.count();
    let mut dates = dates(&spoken);
    let spoken = &spoken[first..];
    let with = with_each(spoken);
    let mut seen = HashSet::new();
    let mut all: Vec<Sentence> = Vec::new();
    for (text, (at, words)) in spoken.iter().enumerate() {
        let date = dates.get(at).copied();
        for sentence in sentences(&words[..floor(words, READ)]) {
            let is_said = stands.iter().any(|text| text.contains(sentence));
            let is_date = date.is_some_and(|date| sentence.len() < date.len() + 16 && sentence.contains(date));
            if is_said || is_date || sentence.len() > LONGEST || !seen.insert(sentence) {
                continue;
            }
            let value = value(sentence, &with, spoken.len());
            let from = sentence.as_ptr() as usize - words.as_ptr() as usize;
            all.extend((value > 0.0).then(|| Sentence { value, text, range: from..from + sentence.len() }));
        }
    }
    all.sort_by(|a, b| b.value.total_cmp(&a.value).then(b.text.cmp(&a.text)).then(a.range.start.cmp(&b.range.start)));
    let (mut bytes, mut quoted, mut dated) = (0, HashSet::new(), HashSet::new());
    let mut kept = Vec::new();
    for Sentence { text, range, .. } in all {
        let date = dates.get(&spoken[text].0).copied().filter(|date| dated.insert(*date));
        let heading = if quoted.insert(text) { HEADING } else { 0 };
        bytes += range.len() + heading + date.map_or(0, str::len) + 3;
        if bytes > MOST {
            break;
        }
        kept.push(Quote { text, range, bytes });
    }
    let texts = spoken.iter().enumerate().map(|(i, (at, words))| Quoted {
        at: *at,
        label: label(body, *at),
        date: dates.remove(at).map(str::to_owned),
        text: if quoted.contains(&i) { words.clone() } else { String::new() },
    });
    Work::told(texts.collect(), kept)
}

/// When each message was said, by the newest stamp that a client put before one.
fn dates(spoken: &[(usize, String)]) -> HashMap<usize, &str> {
    let mut last = None;
    let dated = spoken.iter().filter_map(|(at, words)| {
        last = stamp(words).or(last);
        last.map(|date| (*at, date))
    });
    dated.collect()
}

/// In how many messages each word stands.
fn with_each(spoken: &[(usize, String)]) -> HashMap<String, usize> {
    let mut with: HashMap<String, usize> = HashMap::new();
    for (_, words) in spoken {
        let all = indexed(words);
        let once: HashSet<&str> = all.split_whitespace().collect();
        for word in once {
            match with.get_mut(word) {
                Some(count) => *count += 1,
                None => _ = with.insert(word.to_owned(), 1),
            }
        }
    }
    with
}

/// What a sentence says for its length; nothing where it is too short to say anything by itself.
fn value(sentence: &str, with: &HashMap<String, usize>, of: usize) -> f64 {
    let all = indexed(sentence);
    let mut words: Vec<&str> = all.split_whitespace().collect();
    words.sort_unstable();
    words.dedup();
    if words.len() < LEAST_WORDS {
        return 0.0;
    }
    let numbers = words.iter().filter(|word| word.bytes().any(|b| b.is_ascii_digit())).count().min(3);
    let rare: f64 = words.iter().map(|word| rarity(with.get(*word).copied().unwrap_or(0), of)).sum();
    rare * (1.0 + NUMBER * numbers as f64) / (sentence.len() + BY_ITSELF) as f64
}

#[cfg(test)]
mod tests {
    use super::super::{Material, facts, parse, restate};
    use super::*;
    use crate::wire::openai_chat as wire;

    fn message(role: &str, text: &str) -> Message {
        wire::message(serde_json::json!({"role": role, "content": text}).to_string().into()).unwrap()
    }

    fn count(text: &str) -> u32 {
        u32::try_from(text.len().div_ceil(4)).unwrap_or(u32::MAX)
    }

    /// The brief of all these messages, in two folds.
    fn brief(body: &[Message], budget: u32) -> String {
        let mut last: Option<String> = None;
        let mut done = 0;
        for to in [body.len() / 2, body.len()] {
            let numbers: Vec<usize> = (done..to).collect();
            let messages: Vec<&Message> = body[done..to].iter().collect();
            let mut facts = facts(&Material {
                messages: &messages,
                numbers: &numbers,
                previous: last.as_deref(),
                history_path: "/h.md",
                conversation: "c, messages 0-9",
                records: &[],
            });
            restate(&mut facts, body[..to].iter().enumerate(), done);
            let folded: Vec<usize> = (0..to).collect();
            assert!(retell(&mut facts, body, &folded, &[]));
            last = Some(render::render(None, &facts, budget, &count));
            done = to;
        }
        last.unwrap()
    }

    const TALK: [&str; 4] = [
        "That sounds good, I am so happy for you.",
        "Well, you know how it is with all of that.",
        "It was so good to talk to you, see you.",
        "I have been thinking about all of that, you know.",
    ];

    /// Small talk of two, with a fact in every third message of each.
    fn talk() -> Vec<Message> {
        let fact = |n: usize| match n {
            0 => "My sister Maja moved to Gdynia in 2019.".to_owned(),
            7 => "Rule: never call me before nine.".to_owned(),
            n => format!("The heron{n} nested beside the sluice{n}, above lock {n}."),
        };
        let turn = |n: usize| {
            let stamp = if n.is_multiple_of(10) { format!("[2024-05-{:02} 10:00]\n", n + 1) } else { String::new() };
            let told = if n.is_multiple_of(3) || n == 7 { format!(" {}", fact(n)) } else { String::new() };
            message(if n.is_multiple_of(2) { "user" } else { "assistant" }, &format!("{stamp}{}{told}", TALK[n % 4]))
        };
        (0..60).map(turn).collect()
    }

    #[test]
    fn what_nobody_can_guess_is_quoted_before_small_talk() {
        let body = talk();
        let text = brief(&body, 700);
        assert!(count(&text) <= 700);
        let facts = (3..60).step_by(3).filter(|n| text.contains(&format!("heron{n} nested"))).count();
        assert!(facts == 19 && text.contains("Gdynia in 2019"), "{facts} {text}");
        assert_eq!(text.matches("never call me before nine").count(), 1, "{text}");
        // Nothing stands there twice, and each day once.
        for said in TALK {
            assert!(text.matches(said).count() <= 1, "{said}: {text}");
        }
        assert_eq!(text.matches("[2024-05-11 10:00]").count(), 1, "{text}");
        // With less room the facts come first.
        let short = brief(&body, 400);
        assert!(short.contains("heron") && TALK.iter().all(|said| !short.contains(said)), "{short}");
        // What is quoted is not read back as something else.
        assert!(parse(&text).unwrap().part(Part::User).items.iter().all(|item| !item.text.contains("heron")));
        // The same messages give the same brief.
        assert_eq!(text, brief(&body, 700));
    }

    #[test]
    fn of_one_who_explains_at_length_the_person_is_quoted_alone() {
        let mut body = talk();
        for message in body.iter_mut().skip(1).step_by(2) {
            message.text = format!("heron{} {}", 0, "It is a long explanation of houses. ".repeat(20)).into();
        }
        let text = brief(&body, 700);
        assert!(text.contains("heron6 nested") && !text.contains("heron3 nested"), "{text}");
        assert!(!text.contains(" assistant\n"), "{text}");
    }

    #[test]
    fn a_person_who_states_much_is_quoted_by_what_they_state() {
        let words = "Hello there. I had a walk today and the weather was fine. Rule: never call me before nine.";
        let item = stating(&Item::new(Part::User, words.into(), 1));
        assert_eq!(item.text, "Rule: never call me before nine.");
        let marked = Item::new(Part::User, format!("{words} (replaces an earlier statement)"), 1);
        assert_eq!(stating(&marked).text, marked.text);
    }

    #[test]
    fn where_work_is_done_nothing_is_retold() {
        let mut body = talk();
        body.push(message("assistant", ""));
        body.push(wire::message(r#"{"role":"tool","tool_call_id":"a","content":"x"}"#.into()).unwrap());
        let mut facts = Facts::default();
        let all: Vec<usize> = (0..body.len()).collect();
        assert!(!retell(&mut facts, &body, &all, &[]));
        assert_eq!(facts, Facts::default());
    }
}
