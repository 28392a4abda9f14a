//! Loops of chat templates that only look something up: whether there is a message of a kind, or which one is the last.
//! They end where the answer is known, the second sort after it was made to go backwards.
//!
//! As in [`super::loops`], only what is proved from the template's own text is changed.

use minijinja::machinery::ast::{BinOpKind, CompareOpKind, Expr, ForLoop, Set, Spanned, Stmt};

use super::loops::{Insert, asks, behind_tag, conjunction, is_pure, mentions, path, root};

/// The filter that goes through a list backwards, from before a place.
pub(super) const BACKWARDS: &str = "__backwards";

/// What a loop sets where a condition holds, and does nothing else.
struct Scan<'a, 's> {
    message: &'a str,
    list: &'a str,
    list_end: usize,
    condition: &'a Expr<'s>,
    set: &'a Spanned<Set<'s>>,
    /// The variable whose attribute is set.
    answer: String,
}

impl<'a, 's> Scan<'a, 's> {
    fn of(found: &'a Spanned<ForLoop<'s>>) -> Option<Scan<'a, 's>> {
        let Expr::Var(message) = &found.target else { return None };
        if found.filter_expr.is_some() || !found.else_body.is_empty() || found.recursive {
            return None;
        }
        let [Stmt::IfCond(only)] = &found.body[..] else { return None };
        let ([Stmt::Set(set)], []) = (&only.true_body[..], &only.false_body[..]) else { return None };
        let Expr::GetAttr(_) = &set.target else { return None };
        let answer = root(&path(&set.target)?).to_owned();
        if answer == message.id || answer == "loop" {
            return None;
        }
        let (list, list_end) = match &found.iter {
            Expr::Var(list) => (list.id, list.span().end_offset as usize),
            _ => ("", 0),
        };
        Some(Scan { message: message.id, list, list_end, condition: &only.expr, set, answer })
    }

    /// Behind the statement that sets.
    fn stop(&self, source: &str) -> Option<Insert> {
        let at = behind_tag(source, self.set.span().end_offset as usize)?;
        Some((at, "{%- break -%}".to_owned()))
    }
}

/// What has a scan end early; nothing for other loops.
pub(super) fn ended(source: &str, found: &Spanned<ForLoop<'_>>) -> Vec<Insert> {
    let Some(scan) = Scan::of(found) else { return Vec::new() };
    first(source, &scan).or_else(|| last(source, &scan)).unwrap_or_default()
}

/// A scan that sets the same whenever it sets anything: the first time is enough.
fn first(source: &str, scan: &Scan<'_, '_>) -> Option<Vec<Insert>> {
    let same = matches!(scan.set.expr, Expr::Const(_)) && asks(scan.condition, scan.message);
    if same { Some(vec![scan.stop(source)?]) } else { None }
}

/// A scan whose last answer counts: it goes backwards from where it may answer at all, and the first time is enough.
fn last(source: &str, scan: &Scan<'_, '_>) -> Option<Vec<Insert>> {
    if scan.list.is_empty() || !source[..scan.list_end].ends_with(scan.list) || mentions(scan.condition, &scan.answer) {
        return None;
    }
    let mut places = Vec::new();
    let mut all = Vec::new();
    conjunction(scan.condition, &mut all);
    let mut bound = None;
    for condition in all {
        match before(condition) {
            Some(name) if root(&name) != scan.message && root(&name) != scan.answer && root(&name) != "loop" => {
                places.push(left_end(condition)?);
                bound = Some(name);
            }
            _ => asks(condition, scan.message).then_some(())?,
        }
    }
    if is_place(&scan.set.expr) {
        places.push(end(&scan.set.expr)?);
    } else if !is_pure(&scan.set.expr) || mentions(&scan.set.expr, "loop") || mentions(&scan.set.expr, &scan.answer) {
        return None;
    }
    let mut out = vec![(scan.list_end, format!(" | {BACKWARDS}({})", bound.as_deref().unwrap_or("none")))];
    for place in places {
        // The places are those of the list as it was.
        let at = place.checked_sub("index0".len()).filter(|at| &source[*at..place] == "index0")?;
        out.push((at, "rev".to_owned()));
    }
    out.push(scan.stop(source)?);
    Some(out)
}

/// The name that the place of a message has to be below.
fn before(condition: &Expr<'_>) -> Option<String> {
    match condition {
        Expr::BinOp(op) if matches!(op.op, BinOpKind::Lt) && is_place(&op.left) => path(&op.right),
        Expr::Compare(compare) if is_place(&compare.expr) => match &compare.ops[..] {
            [one] if matches!(one.op, CompareOpKind::Lt) => path(&one.expr),
            _ => None,
        },
        _ => None,
    }
}

/// The end of the left side of a comparison.
fn left_end(condition: &Expr<'_>) -> Option<usize> {
    match condition {
        Expr::BinOp(op) => end(&op.left),
        Expr::Compare(compare) => end(&compare.expr),
        _ => None,
    }
}

/// Whether an expression is the place of a message in the loop's list.
fn is_place(e: &Expr<'_>) -> bool {
    matches!(e, Expr::GetAttr(_)) && path(e).as_deref() == Some("loop.index0")
}

fn end(e: &Expr<'_>) -> Option<usize> {
    match e {
        Expr::GetAttr(get) => Some(get.span().end_offset as usize),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use minijinja::machinery::WhitespaceConfig;

    use super::super::loops::shortened;

    fn after(source: &str) -> String {
        shortened(source, WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true })
    }

    fn scan(list: &str, condition: &str, set: &str, stop: &str) -> String {
        format!(
            "{{%- for m in {list} -%}}{{%- if {condition} -%}}{{%- set {set} -%}}{stop}{{%- endif -%}}{{%- endfor -%}}"
        )
    }

    const STOP: &str = "{%- break -%}";

    #[test]
    fn a_search_ends_where_it_is_answered() {
        for (list, condition) in [
            ("messages", "m.role == 'system'"),
            ("messages[loop.index:]", "m.role == 'assistant' and \"tool_calls\" not in m"),
            ("rest", "m.get('tool_calls')"),
        ] {
            let set = "ns.found = true";
            assert_eq!(after(&scan(list, condition, set, "")), scan(list, condition, set, STOP));
        }
    }

    #[test]
    fn a_search_for_the_last_goes_backwards() {
        let condition = |place: &str| format!("m['role'] == 'assistant' and m['tool_calls'] and loop.{place} < outer");
        let expect = scan("messages | __backwards(outer)", &condition("revindex0"), "ns.at = loop.revindex0", STOP);
        assert_eq!(after(&scan("messages", &condition("index0"), "ns.at = loop.index0", "")), expect);
        let expect = scan("messages | __backwards(none)", "m.role == 'user'", "ns.last = m.content", STOP);
        assert_eq!(after(&scan("messages", "m.role == 'user'", "ns.last = m.content", "")), expect);
    }

    #[test]
    fn other_loops_stay_as_they_are() {
        for (condition, set) in [
            ("f(m)", "ns.found = true"),
            ("m.role == 'user' and f(m)", "ns.found = true"),
            ("m.role == 'user'", "found = true"),
            ("m.role == 'user'", "m.found = true"),
            ("m.role == ns.role", "ns.role = m.content"),
            ("m.role == 'user'", "ns.n = ns.n + 1"),
            ("m.role == 'user'", "ns.n = loop.index"),
            ("loop.last", "ns.n = loop.index0"),
            ("loop.index0 < ns.n", "ns.n = loop.index0"),
            ("loop.index0 > n", "ns.n = loop.index0"),
        ] {
            let kept = scan("messages", condition, set, "");
            assert_eq!(after(&kept), kept);
        }
        let printing = scan("messages", "m.role == 'user'", "ns.found = true", "x");
        assert_eq!(after(&printing), printing);
    }
}
