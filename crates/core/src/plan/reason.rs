//! Reasons in words: as they are recorded, and as a sentence for people. Both are here, so that one is read as the other was written.

use super::Because;
use crate::conversation::Tokens;
use crate::preview::grouped_digits;

/// Begins the number of messages between the ends of a fold that stay where they are: what is pinned, or was asked last.
pub(super) const STAY: &str = ", of which stay ";

/// Begins the reason of an undo, before what it took back.
pub const TOOK_BACK: &str = "took back ";

/// Reasons as they are told: the first begins with the prompt as it was, and the last ends with the one that was forwarded.
/// What a rule left to the next one was only planned. `rough`: the size before was only estimated.
pub fn reasons(because: &[Because], (before, rough): (Tokens, bool), after: Tokens) -> Vec<String> {
    let last = because.len().saturating_sub(1);
    let told = |(at, why): (usize, &Because)| {
        let from = match at {
            0 if rough => format!("about {before}"),
            0 => before.to_string(),
            _ => format!("about {}", why.before),
        };
        let to = if at == last { after.to_string() } else { format!("about {}", why.after) };
        recorded(why, &from, &to)
    };
    because.iter().enumerate().map(told).collect()
}

fn recorded(why: &Because, from: &str, to: &str) -> String {
    let Because { rule, what, line, .. } = why;
    // What somebody asked for has passed no line.
    let line = if *line > 0 { format!("; line {line}") } else { String::new() };
    format!("{rule}: {what} ({from} -> {to} tokens{line})")
}

/// Who asks for a rewrite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskedBy {
    /// A person, by the page, the command line or HTTP.
    User,
    /// The program that has the conversation, by its own API.
    Client,
    /// An agent, over the Model Context Protocol.
    Agent,
}

impl AskedBy {
    /// As it stands in an event.
    pub const fn as_str(self) -> &'static str {
        match self {
            AskedBy::User => "user",
            AskedBy::Client => "client",
            AskedBy::Agent => "agent",
        }
    }

    /// What [`AskedBy::as_str`] says.
    pub fn read(told: &str) -> Option<AskedBy> {
        [AskedBy::User, AskedBy::Client, AskedBy::Agent].into_iter().find(|by| by.as_str() == told)
    }
}

/// A rewrite as the record tells it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rewrite<'a> {
    /// The layers that acted, between commas, or what a person asked for.
    pub action: &'a str,
    /// Its reasons as they were recorded.
    pub because: &'a [&'a str],
    /// Prompt tokens before and after.
    pub tokens: (Tokens, Tokens),
    /// Whether the size before was only estimated, and the one after.
    pub estimated: (bool, bool),
    /// Tokens that were kept for the reply.
    pub reserved: Tokens,
    /// The window, where it is known.
    pub window: Option<Tokens>,
    /// Who asked for it; `None` where a rule made it.
    pub asked_by: Option<AskedBy>,
}

/// What was done, why, and what came of it, in a sentence for people: "Folded 13 messages at 87 %, because the prompt had passed 3,400
/// tokens: 3,562 → 1,204 tokens."
pub fn sentence(rewrite: &Rewrite<'_>) -> String {
    let facts = facts(rewrite);
    let done = capital(&done(rewrite, &facts));
    let at = share(rewrite).map_or(String::new(), |share| format!(" at {share} %"));
    let why = why(rewrite, &facts).map_or(String::new(), |why| format!(", {why}"));
    format!("{done}{at}{why}: {}.", sizes(rewrite))
}

/// A rewrite as what is taken back: "the rewrite that folded 13 messages (3,562 → 1,204 tokens)".
pub fn named(rewrite: &Rewrite<'_>) -> String {
    format!("the rewrite that {} ({})", done(rewrite, &facts(rewrite)), sizes(rewrite))
}

fn facts<'a>(rewrite: &Rewrite<'a>) -> Vec<Fact<'a>> {
    rewrite.because.iter().filter_map(|why| Fact::read(why)).collect()
}

/// What a rewrite did, without its subject.
fn done(rewrite: &Rewrite<'_>, facts: &[Fact<'_>]) -> String {
    let mut clauses: Vec<String> = Vec::new();
    for clause in facts.iter().filter_map(Fact::clause).chain(bare(rewrite, facts)) {
        if !clauses.contains(&clause) {
            clauses.push(clause);
        }
    }
    if clauses.is_empty() {
        clauses.push(format!("changed the prompt ({})", rewrite.action));
    }
    listed(&clauses)
}

fn sizes(rewrite: &Rewrite<'_>) -> String {
    let size = |tokens, estimated| format!("{}{}", if estimated { "about " } else { "" }, grouped(tokens));
    let (before, after) = rewrite.tokens;
    format!("{} → {} tokens", size(before, rewrite.estimated.0), size(after, rewrite.estimated.1))
}

/// One recorded reason.
struct Fact<'a> {
    rule: &'a str,
    what: &'a str,
    line: Tokens,
}

impl<'a> Fact<'a> {
    /// What [`recorded`] wrote; `None` for other words.
    fn read(text: &'a str) -> Option<Fact<'a>> {
        let (rule, rest) = text.split_once(": ")?;
        let (what, numbers) = rest.rsplit_once(" (")?;
        let numbers = numbers.strip_suffix(')')?;
        let line = match numbers.rsplit_once("tokens; line ") {
            Some((_, line)) => line.parse().ok()?,
            None if numbers.ends_with(" tokens") => 0,
            None => return None,
        };
        Some(Fact { rule, what, line })
    }

    /// Messages between the ends of a fold that stay where they are.
    fn stay(&self) -> usize {
        self.what.rsplit_once(STAY).and_then(|(_, n)| n.parse().ok()).unwrap_or(0)
    }

    /// The message behind the last one of a fold. An older version told it as "2..15".
    fn behind(&self, last: usize) -> usize {
        if self.what.contains("..") { last } else { last.saturating_add(1) }
    }

    /// What the rule did, without its subject.
    fn clause(&self) -> Option<String> {
        let numbers = || self.what.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<usize>().ok());
        let some = |one: &str, many: &str| match numbers().next() {
            Some(1) => format!("1 {one}"),
            Some(n) => format!("{} {many}", grouped_digits(n)),
            None => many.to_owned(),
        };
        Some(match self.rule {
            "summarize" => match (numbers().next(), numbers().nth(1).map(|last| self.behind(last))) {
                (Some(from), Some(behind)) if behind > from => match (behind - from).saturating_sub(self.stay()) {
                    1 => "folded 1 message".to_owned(),
                    n => format!("folded {} messages", grouped_digits(n)),
                },
                _ => "folded older messages".to_owned(),
            },
            "evict" if self.what.contains("replaced by a preview") => {
                format!("put a preview in the place of {}", some("large result", "large results"))
            }
            "evict" if self.what.contains(" became a preview") => {
                format!("put a preview in the place of message {}", numbers().next()?)
            }
            "clear" if self.what.contains(" became a placeholder") => format!("cleared message {}", numbers().next()?),
            "restore" => format!("brought message {} back in full", numbers().next()?),
            "undo" if self.what.starts_with(TOOK_BACK) => self.what.to_owned(),
            "clear" if self.what.contains("old results") => format!("cleared {}", some("old result", "old results")),
            "repeat" => format!("pointed {} to where the same text stands", some("result", "results")),
            "truncate" => "cut what did not fit".to_owned(),
            _ => return None,
        })
    }
}

/// What is done of itself, or was asked for, where no reason says how much.
fn bare<'a>(rewrite: &'a Rewrite<'_>, facts: &'a [Fact<'_>]) -> impl Iterator<Item = String> + 'a {
    // A fold without a model goes by the name of its strategy.
    let told = |layer: &str| {
        let is = |rule: &str| rule == layer || layer == "truncate" && rule == "summarize";
        facts.iter().any(|fact| is(fact.rule) && fact.clause().is_some())
    };
    rewrite.action.split(',').filter(move |layer| !told(layer)).filter_map(|layer| {
        let clause = match layer.trim() {
            "summarize" => "folded older messages",
            "evict" => "put a preview in the place of a large result",
            "clear" => "cleared old results",
            "truncate" => "cut what did not fit",
            "undo" => "took the last rewrite back",
            "restore" => "brought a message back in full",
            "brief" => "changed the brief",
            "pin" => "pinned what is to stay",
            "unpin" => "let go what was pinned",
            _ => return None,
        };
        Some(clause.to_owned())
    })
}

/// Why, as far as it is known.
fn why(rewrite: &Rewrite<'_>, facts: &[Fact<'_>]) -> Option<String> {
    match rewrite.asked_by {
        Some(AskedBy::User) => return Some("as you asked".into()),
        Some(AskedBy::Client) => return Some("because the client asked for it".into()),
        Some(AskedBy::Agent) => return Some("as the agent asked".into()),
        None => {}
    }
    let begins = |with: &str| rewrite.because.iter().find(|why| why.starts_with(with));
    if rewrite.action.split(',').any(|layer| layer == "emergency") {
        return Some("because the server refused the prompt as too long".into());
    }
    if begins("checkpoint").is_some() {
        return Some("because a task was done".into());
    }
    if let Some(pace) = begins("fold_every") {
        return Some(format!("as `{}` says", pace.split(':').next().unwrap_or(pace)));
    }
    let (before, window) = (rewrite.tokens.0, rewrite.window);
    if window.is_some_and(|window| before.saturating_add(rewrite.reserved) > window) {
        return Some("because the prompt would not have fitted".into());
    }
    let passed =
        ["summarize", "clear"].into_iter().find_map(|rule| facts.iter().find(|f| f.rule == rule && f.line > 0));
    if let Some(fact) = passed {
        // A rewrite that is due soon is made where another one takes the cache anyway.
        let had = if before.saturating_add(rewrite.reserved) > fact.line { "had passed" } else { "was about to pass" };
        return Some(format!("because the prompt {had} {} tokens", grouped(fact.line)));
    }
    let large = facts.iter().find(|fact| fact.rule == "evict" && fact.line > 0)?;
    Some(format!("because a result may have {} tokens", grouped(large.line)))
}

/// How full the window was, in percent.
fn share(rewrite: &Rewrite<'_>) -> Option<u64> {
    let window = rewrite.window.filter(|window| *window > 0 && rewrite.asked_by.is_none())?;
    let full = u64::from(rewrite.tokens.0) + u64::from(rewrite.reserved);
    Some((full * 100 + u64::from(window) / 2) / u64::from(window))
}

fn listed(clauses: &[String]) -> String {
    match clauses {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or(String::new(), |first| first.to_uppercase().chain(characters).collect())
}

/// Tokens with thousands set apart.
pub(super) fn grouped(tokens: Tokens) -> String {
    grouped_digits(usize::try_from(tokens).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn because(rule: &'static str, what: &str, line: Tokens) -> Because {
        Because { rule, before: 3_562, after: 1_204, line, what: what.into() }
    }

    fn told(action: &str, because: &[Because], more: impl FnOnce(&mut Rewrite<'_>)) -> String {
        let written = reasons(because, (3_562, false), 1_204);
        let written: Vec<&str> = written.iter().map(String::as_str).collect();
        let mut rewrite =
            Rewrite { action, because: &written, tokens: (3_562, 1_204), reserved: 0, ..Rewrite::default() };
        more(&mut rewrite);
        sentence(&rewrite)
    }

    #[test]
    fn what_is_recorded_is_told_as_a_sentence() {
        let fold = because("summarize", "messages 2 to 14 folded into a brief of at most 400 tokens", 3_400);
        let older = because("summarize", "messages 2..15 folded into a brief of at most 400 tokens", 3_400);
        assert_eq!(told("summarize", &[older], |_| ()), told("summarize", std::slice::from_ref(&fold), |_| ()));
        let clear =
            because("clear", "3 old results cleared, about 900 tokens freed, about 80 to evaluate again", 2_400);
        let evict = because("evict", "1 over 614 tokens replaced by a preview", 614);
        assert!(
            reasons(&[clear.clone(), fold.clone()], (3_562, true), 1_204)[0].contains("(about 3562 -> about 1204 ")
        );
        assert_eq!(
            told("summarize", std::slice::from_ref(&fold), |r| r.window = Some(4_096)),
            "Folded 13 messages at 87 %, because the prompt had passed 3,400 tokens: 3,562 → 1,204 tokens."
        );
        assert_eq!(
            told("clear,summarize", &[clear.clone(), fold.clone()], |r| (r.window, r.reserved) = (Some(4_096), 1_000)),
            "Cleared 3 old results and folded 13 messages at 111 %, because the prompt would not have fitted: 3,562 → 1,204 tokens."
        );
        assert_eq!(
            told("evict", &[evict], |r| r.estimated = (true, true)),
            "Put a preview in the place of 1 large result, because a result may have 614 tokens: about 3,562 → about 1,204 tokens."
        );
        let pinned = Because { what: format!("{}, of which stay 2", fold.what), ..fold.clone() };
        assert!(told("summarize", &[pinned], |_| ()).starts_with("Folded 11 messages, because"));
        assert!(told("truncate", std::slice::from_ref(&fold), |_| ()).starts_with("Folded 13 messages, because"));
        assert_eq!(
            told("summarize", std::slice::from_ref(&fold), |r| r.asked_by = Some(AskedBy::User)),
            "Folded 13 messages, as you asked: 3,562 → 1,204 tokens."
        );
        let of_client = Because { what: format!("the client asks: {}", fold.what), ..fold };
        assert_eq!(
            told("summarize", &[of_client], |r| (r.asked_by, r.window) = (Some(AskedBy::Client), Some(4_096))),
            "Folded 13 messages, because the client asked for it: 3,562 → 1,204 tokens."
        );
        let by_agent = told("pin", &[], |r| r.asked_by = AskedBy::read("agent"));
        assert_eq!(by_agent, "Pinned what is to stay, as the agent asked: 3,562 → 1,204 tokens.");
        assert_eq!(
            told("undo", &[], |r| r.asked_by = Some(AskedBy::User)),
            "Took the last rewrite back, as you asked: 3,562 → 1,204 tokens."
        );
        assert!(
            told("clear,emergency", &[clear], |_| ()).contains("because the server refused the prompt as too long")
        );
        let undo = because("undo", "took back the rewrite that folded 13 messages (3,562 → 1,204 tokens)", 3_400);
        assert_eq!(
            told("undo", &[undo], |r| r.asked_by = Some(AskedBy::User)),
            "Took back the rewrite that folded 13 messages (3,562 → 1,204 tokens), as you asked: 3,562 → 1,204 tokens."
        );
        for (rule, what, is) in [
            (
                "restore",
                "restore: message 26 stands in full again, asked for by a person",
                "Brought message 26 back in full",
            ),
            ("clear", "clear: message 26 became a placeholder, asked for by a person", "Cleared message 26"),
            (
                "evict",
                "evict: message 26 became a preview, asked for by a person",
                "Put a preview in the place of message 26",
            ),
        ] {
            let said = told(rule, &[because(rule, what, 0)], |r| r.asked_by = Some(AskedBy::User));
            assert_eq!(said, format!("{is}, as you asked: 3,562 → 1,204 tokens."));
        }
        let rewrite = Rewrite { action: "brief", tokens: (9, 3), estimated: (false, true), ..Rewrite::default() };
        assert_eq!(named(&rewrite), "the rewrite that changed the brief (9 → about 3 tokens)");
        assert_eq!(told("odd", &[], |_| ()), "Changed the prompt (odd): 3,562 → 1,204 tokens.");
    }

    /// What an older version, or somebody else, wrote is no reason to say nothing.
    #[test]
    fn words_that_are_no_recorded_reason_are_passed_over() {
        for words in
            ["", "summarize", "clear: x (1 -> 2)", "fold_every_turns: 12 turns", "ü: é (é -> é tokens; line é)"]
        {
            let rewrite = Rewrite { action: "summarize", because: &[words], tokens: (9, 3), ..Rewrite::default() };
            assert!(sentence(&rewrite).starts_with("Folded older messages"), "{words}");
        }
    }
}
