//! What is set in one round of a loop and is still there in the next, as llama.cpp's engine has it (`for_statement`: one
//! scope for all rounds), where Jinja forgets it: kept in a namespace beside the loop.
//!
//! Only for names that a round may ask for before it has set them; for the others both ways are the same.

use std::collections::HashSet;

use minijinja::machinery::{Span, Token, WhitespaceConfig, tokenize};

use super::loops::Insert;

/// The name of the namespace of a loop begins so.
const KEPT: &str = "__kept";

/// Has loops keep what is set in them. A template that cannot be read stays as it is.
pub(super) fn carried(source: &str, whitespace: WhitespaceConfig) -> String {
    let read: Result<Vec<_>, _> = tokenize(source, false, Default::default(), whitespace).collect();
    let Ok(tokens) = read else { return source.to_owned() };
    let mut inserts = Vec::new();
    for (number, found) in loops(&tokens).into_iter().enumerate() {
        inserts.extend(kept(source, &format!("{KEPT}{number}"), &found));
    }
    // Outer loops come last: at one place, what theirs is stands before what is an inner one's.
    inserts.reverse();
    inserts.sort_by_key(|(at, _)| *at);
    let mut out = String::with_capacity(source.len());
    let mut from = 0;
    for (at, text) in inserts {
        out.push_str(&source[from..at]);
        out.push_str(&text);
        from = at;
    }
    out.push_str(&source[from..]);
    out
}

/// A tag `{% … %}`: its bytes.
#[derive(Debug, Clone, Copy)]
struct Tag {
    start: usize,
    end: usize,
}

/// Names that are set.
#[derive(Debug)]
struct Assigned {
    names: Vec<String>,
    /// The tag behind which they are.
    behind: Tag,
}

/// A loop with what belongs to its own scope.
#[derive(Debug)]
struct Loop {
    tag: Tag,
    /// The names of an item.
    items: Vec<String>,
    sets: Vec<Assigned>,
    /// Names that may be asked for in a round before it has set them.
    asked: HashSet<String>,
    /// Names that every round has set by now.
    sure: HashSet<String>,
}

/// A block that is open.
#[derive(Debug)]
enum Open {
    Loop(Loop),
    /// It has no scope of its own, but what it sets is not set for sure.
    If,
    /// What it holds becomes the value of a name.
    Set(Vec<String>),
    /// A scope that is not looked into: a macro, a call, a filter.
    Other,
}

/// The loops of a template, with their inner ones apart.
fn loops(tokens: &[(Token<'_>, Span)]) -> Vec<Loop> {
    let mut out = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let (token, span) = &tokens[at];
        match token {
            Token::BlockStart => {
                let end = tokens[at..].iter().position(|(t, _)| matches!(t, Token::BlockEnd)).map(|n| at + n);
                let Some(end) = end else { break };
                let tag = Tag { start: span.start_offset as usize, end: tokens[end].1.end_offset as usize };
                statement(&tokens[at + 1..end], tag, &mut open, &mut out);
                at = end;
            }
            Token::Ident(name) => asks(&mut open, name),
            _ => {}
        }
        at += 1;
    }
    out
}

/// Takes one tag, without its brackets.
fn statement(words: &[(Token<'_>, Span)], tag: Tag, open: &mut Vec<Open>, out: &mut Vec<Loop>) {
    let names = |words: &[(Token<'_>, Span)]| -> Vec<String> {
        let name = |(token, _): &(Token<'_>, Span)| match token {
            Token::Ident(name) => Some((*name).to_owned()),
            _ => None,
        };
        words.iter().filter_map(name).collect()
    };
    let Some((Token::Ident(keyword), _)) = words.first() else { return };
    let rest = &words[1..];
    match *keyword {
        "for" => {
            let at = rest.iter().position(|(t, _)| matches!(t, Token::Ident("in"))).unwrap_or(rest.len());
            let items = names(&rest[..at]);
            let own = |name: &&String| !items.contains(name);
            names(&rest[at..]).iter().filter(own).for_each(|name| asks(open, name));
            let (sets, asked, sure) = Default::default();
            open.push(Open::Loop(Loop { tag, items, sets, asked, sure }));
        }
        "if" => {
            names(rest).iter().for_each(|name| asks(open, name));
            open.push(Open::If);
        }
        "set" => {
            let value = rest.iter().position(|(t, _)| matches!(t, Token::Assign));
            let targets = &rest[..value.unwrap_or(rest.len())];
            let attribute = targets.iter().any(|(t, _)| matches!(t, Token::Dot | Token::BracketOpen));
            let set = if attribute { Vec::new() } else { names(targets) };
            match value {
                Some(at) => {
                    names(&rest[at..]).iter().for_each(|name| asks(open, name));
                    sets(open, set, tag);
                }
                None => open.push(Open::Set(set)),
            }
        }
        "macro" | "call" | "filter" | "with" | "autoescape" | "block" => {
            names(rest).iter().for_each(|name| asks(open, name));
            open.push(Open::Other);
        }
        "endset" => {
            if let Some(Open::Set(names)) = open.pop() {
                sets(open, names, tag);
            }
        }
        "endfor" => {
            if let Some(Open::Loop(found)) = open.pop() {
                // Inner loops ask for what outer ones have set.
                found.asked.iter().for_each(|name| asks(open, name));
                out.push(found);
            }
        }
        other if other.starts_with("end") => {
            open.pop();
        }
        _ => names(rest).iter().for_each(|name| asks(open, name)),
    }
}

/// Notes that names are set, in the scope of the loop around.
fn sets(open: &mut [Open], names: Vec<String>, behind: Tag) {
    let mut certain = true;
    for block in open.iter_mut().rev() {
        match block {
            Open::If => certain = false,
            Open::Loop(found) => {
                if certain {
                    found.sure.extend(names.iter().cloned());
                }
                found.sets.push(Assigned { names, behind });
                return;
            }
            Open::Set(_) | Open::Other => return,
        }
    }
}

/// Notes that a name is asked for, by the loop around.
fn asks(open: &mut [Open], name: &str) {
    let around = open.iter_mut().rev().find_map(|block| match block {
        Open::Loop(found) => Some(found),
        _ => None,
    });
    if let Some(found) = around.filter(|found| !found.sure.contains(name)) {
        found.asked.insert(name.to_owned());
    }
}

/// What has a loop keep what is set in it.
fn kept(source: &str, namespace: &str, found: &Loop) -> Vec<Insert> {
    let keeps = |name: &String| found.asked.contains(name) && !found.items.contains(name) && name != "loop";
    let mut names: Vec<&String> = found.sets.iter().flat_map(|set| &set.names).filter(|name| keeps(name)).collect();
    names.sort();
    names.dedup();
    if names.is_empty() {
        return Vec::new();
    }
    // A tag right beside another one, with its marks for white space, takes away what that one did.
    let before = source.as_bytes().get(found.tag.start + 2).filter(|b| matches!(b, b'-' | b'+'));
    let before = before.map(|b| char::from(*b)).map(String::from).unwrap_or_default();
    let behind = |tag: Tag| -> &str {
        let mark = &source[..tag.end - 2];
        ["-", "+"].into_iter().find(|m| mark.ends_with(m)).unwrap_or_default()
    };
    let tag = |text: String, mark: &str| format!("{{% {text} {mark}%}}");
    let mut out = vec![(found.tag.start, format!("{{%{before} set {namespace} = namespace() %}}"))];
    let mut restored = String::new();
    for (at, name) in names.iter().enumerate() {
        let mark = if at + 1 == names.len() { behind(found.tag) } else { "" };
        restored.push_str(&format!("{{% if {namespace}.{name} is defined %}}{{% set {name} = {namespace}.{name} %}}"));
        restored.push_str(&tag("endif".into(), mark));
    }
    out.push((found.tag.end, restored));
    for set in &found.sets {
        let mine: Vec<&String> = set.names.iter().filter(|name| names.contains(name)).collect();
        let text: String = mine
            .iter()
            .enumerate()
            .map(|(at, name)| {
                let mark = if at + 1 == mine.len() { behind(set.behind) } else { "" };
                tag(format!("set {namespace}.{name} = {name}"), mark)
            })
            .collect();
        out.push((set.behind.end, text));
    }
    out
}

#[cfg(test)]
mod tests {
    use minijinja::{Environment, context};

    use super::*;
    use crate::template::jinja::WHITESPACE;

    fn rendered(source: &str) -> String {
        let mut env = Environment::new();
        env.set_trim_blocks(true);
        env.set_lstrip_blocks(true);
        env.set_undefined_behavior(minijinja::UndefinedBehavior::Chainable);
        env.render_str(source, context! { items => [1, 2, 3, 4] }).expect("it renders")
    }

    #[test]
    fn what_one_round_sets_the_next_one_has() {
        for (source, forgotten, kept) in [
            ("{% for i in items %}{% if i == 2 %}{% set x = i %}{% endif %}{{ x }},{% endfor %}", ",2,,,", ",2,2,2,"),
            (
                "{%- for i in items -%}\n  {%- if i == 2 -%}\n {%- set x = i -%} \n{%- endif -%} \n <{{ x }}>\n{% endfor -%}\n",
                "<><2><><>",
                "<><2><2><2>",
            ),
            (
                "{% for i in items %}{% if i == 2 %}{% set x, y = 3, 4 %}{% endif %}{{ x }}{{ y }},{% endfor %}",
                ",34,,,",
                ",34,34,34,",
            ),
            ("{% for i in items %}{{ x }},{% set x %}[{{ i }}]{% endset %}{% endfor %}", ",,,,", ",[1],[2],[3],"),
            ("{% for i in items %}{% set x = x ~ i %}{% endfor %}{{ x }}", "", ""),
            // An outer loop keeps what an inner one asks for; tags may stand side by side.
            (
                "{% for i in items %}{% if i == 1 %}{% set x = 9 %}{% endif %}{% for j in [1] %}{{ x }},{% endfor %}{% endfor %}",
                "9,,,,",
                "9,9,9,9,",
            ),
        ] {
            let changed = carried(source, WHITESPACE);
            assert_ne!(changed, source);
            let plain = |text: String| text.replace(['\n', ' '], "");
            assert_eq!(
                (plain(rendered(source)), plain(rendered(&changed))),
                (forgotten.into(), kept.into()),
                "{changed}"
            );
        }
    }

    #[test]
    fn what_each_round_sets_itself_stays_as_it_is() {
        for source in [
            "{% for i in items %}{% set x = i %}{{ x }}{% if x == 2 %}{% set x = 3 %}{% endif %}{{ x }}{% endfor %}",
            "{% for i in items %}{% set i = i + 1 %}{{ i }}{% endfor %}",
            "{% set ns = namespace(x=0) %}{% for i in items %}{% set ns.x = i %}{% endfor %}{{ ns.x }}",
            "{% for i in items %}{% if i == 2 %}{% set x = i %}{% endif %}{% endfor %}{{ x }}",
            "{% for i in items %}{% macro f() %}{% set x = 1 %}{{ x }}{% endmacro %}{{ f() }}{% endfor %}",
            "x {% for %} {% endfor %} {% endif %} {{",
        ] {
            assert_eq!(carried(source, WHITESPACE), source);
        }
    }

    #[test]
    fn white_space_stays_as_it_is() {
        let body = |l: &str, r: &str| {
            format!(
                "a\n  {{%{l} for i in items {r}%}}\n x \n  {{%{l} if i == 9 {r}%}} y\n {{%{l} set z = i {r}%}} \n q{{%{l} endif {r}%}}\n {{{{ z }}}} b\n {{%{l} endfor {r}%}}\n c"
            )
        };
        for (l, r) in [("", ""), ("-", ""), ("", "-"), ("-", "-"), ("+", ""), ("+", "-")] {
            let source = body(l, r);
            let changed = carried(&source, WHITESPACE);
            assert_ne!(changed, source);
            assert_eq!(rendered(&changed), rendered(&source), "{changed}");
        }
    }
}
