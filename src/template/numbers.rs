//! Loops of chat templates that look for the number of a call among all calls: they begin at its message, with the number of
//! calls before it.
//!
//! As in [`super::loops`], only what is proved from the template's own text is changed: the loop stands in a macro, the
//! number is the macro's own, and nothing asks for it behind the loop.

use minijinja::machinery::ast::{BinOpKind, Expr, ForLoop, Spanned, Stmt, UnaryOpKind};

use super::loops::{Insert, conjunction, equals, is_pure, path, root};

/// The filter that tells how many calls there are in the messages before the first with a call of an id.
pub(super) const BEFORE: &str = "__calls_before";
/// The filter that leaves of a list of messages the first with a call of an id.
pub(super) const FIRST: &str = "__first_calling";

/// Has the loops of a template's macros begin there.
pub(super) fn begun(source: &str, statements: &[Stmt<'_>]) -> Vec<Insert> {
    let mut out = Vec::new();
    for statement in statements {
        if let Stmt::Macro(found) = statement {
            within(source, &found.body, found.span().end_offset as usize, &mut out);
        }
    }
    out
}

/// The loops among the statements of a macro, which ends here; those within other loops are left out.
fn within(source: &str, statements: &[Stmt<'_>], end: usize, out: &mut Vec<Insert>) {
    for statement in statements {
        match statement {
            Stmt::IfCond(both) => {
                within(source, &both.true_body, end, out);
                within(source, &both.false_body, end, out);
            }
            Stmt::ForLoop(found) => {
                let own = |name: &str| {
                    let mut made = statements.iter().filter_map(|s| makes(s, name));
                    let (Some(from), None) = (made.next(), made.next()) else { return false };
                    let loop_ends = found.span().end_offset as usize;
                    let aside = [source.get(from..found.span().start_offset as usize), source.get(loop_ends..end)];
                    aside.into_iter().all(|text| text.is_some_and(|text| !has_word(text, name)))
                };
                out.extend(numbering(source, found, &own).unwrap_or_default());
            }
            _ => {}
        }
    }
}

/// Where a statement ends that makes a namespace of this name.
fn makes(statement: &Stmt<'_>, name: &str) -> Option<usize> {
    let Stmt::Set(set) = statement else { return None };
    let new = |e: &Expr<'_>| matches!(e, Expr::Call(call) if matches!(&call.expr, Expr::Var(f) if f.id == "namespace"));
    let named = matches!(&set.target, Expr::Var(var) if var.id == name) && new(&set.expr);
    named.then_some(set.span().end_offset as usize)
}

/// Whether a text has a name in it.
fn has_word(text: &str, name: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name)
}

/// `for message in list: if message.tool_calls: for call in message.tool_calls: if call.id == wanted and not seen: …, set
/// seen; set number = number + 1`, where nothing but the loop has to do with `number`.
fn numbering(source: &str, found: &Spanned<ForLoop<'_>>, own: &dyn Fn(&str) -> bool) -> Option<Vec<Insert>> {
    let plain = |l: &ForLoop<'_>| l.filter_expr.is_none() && l.else_body.is_empty() && !l.recursive;
    let (Expr::Var(message), Expr::Var(list)) = (&found.target, &found.iter) else { return None };
    let [Stmt::IfCond(guard)] = &found.body[..] else { return None };
    let ([Stmt::ForLoop(calls)], []) = (&guard.true_body[..], &guard.false_body[..]) else { return None };
    let Expr::Var(call) = &calls.target else { return None };
    let all = format!("{}.tool_calls", message.id);
    let [Stmt::IfCond(only), Stmt::Set(count)] = &calls.body[..] else { return None };
    if !plain(found)
        || !plain(calls)
        || !only.false_body.is_empty()
        || path(&guard.expr)? != all
        || path(&calls.iter)? != all
    {
        return None;
    }
    let number = path(&count.target)?;
    let Expr::BinOp(sum) = &count.expr else { return None };
    let one = matches!(&sum.right, Expr::Const(one) if one.value.as_i64() == Some(1));
    if !matches!(sum.op, BinOpKind::Add) || path(&sum.left)? != number || !one || !own(root(&number)) {
        return None;
    }
    let mut conditions = Vec::new();
    conjunction(&only.expr, &mut conditions);
    let id = format!("{}.id", call.id);
    let wanted = conditions.iter().find_map(|c| equals(c, &id))?;
    let seen = conditions.iter().find_map(|c| match c {
        Expr::UnaryOp(not) if matches!(not.op, UnaryOpKind::Not) => path(&not.expr),
        _ => None,
    })?;
    let mut said = false;
    for statement in &only.true_body {
        match statement {
            Stmt::EmitRaw(_) => {}
            Stmt::EmitExpr(emit) => drop(path(&emit.expr)?),
            Stmt::Set(set) => {
                let truth = matches!(&set.expr, Expr::Const(c) if c.value.is_true());
                said |= truth && path(&set.target)? == seen;
                said.then_some(())?;
            }
            _ => return None,
        }
    }
    let roots = [root(&seen), root(&wanted)];
    let apart = !roots.contains(&root(&number)) && roots[0] != roots[1];
    let bound = [message.id, call.id, list.id, "loop"];
    if !said || !apart || roots.iter().any(|r| bound.contains(r)) || !conditions.iter().all(|c| is_pure(c)) {
        return None;
    }
    let end = list.span().end_offset as usize;
    let tag =
        source[..end].rfind("{%").filter(|at| source[*at..].starts_with("{%-") && source[..end].ends_with(list.id))?;
    let before = format!("{{%- set {number} = {number} + ({} | {BEFORE}({wanted})) -%}}", list.id);
    Some(vec![(tag, before), (end, format!(" | {FIRST}({wanted})"))])
}

#[cfg(test)]
mod tests {
    use minijinja::machinery::WhitespaceConfig;

    use super::super::loops::shortened;

    fn after(source: &str) -> String {
        shortened(source, WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true })
    }

    fn template(head: &str, list: &str, condition: &str, count: &str, behind: &str) -> String {
        format!(
            "{{%- macro number(all, id) -%}}{{%- set n = namespace(at=0) -%}}{{%- set s = namespace(seen=false) -%}}{head}\
             {{%- for m in {list} -%}}{{%- if m.tool_calls -%}}{{%- for c in m.tool_calls -%}}{{%- if {condition} -%}}\
             {{{{ n.at }}}}{{%- set s.seen = true -%}}{{%- endif -%}}{{%- set n.at = {count} -%}}{{%- endfor -%}}\
             {{%- endif -%}}{{%- endfor -%}}{behind}{{%- endmacro -%}}"
        )
    }

    const SEARCH: &str = "c.id == id and not s.seen";

    #[test]
    fn a_search_for_a_calls_number_begins_at_its_message() {
        let found = after(&template("", "all", SEARCH, "n.at + 1", ""));
        let head = "{%- set n.at = n.at + (all | __calls_before(id)) -%}";
        // What it begins with has calls, which other loops see to by another filter.
        let lists =
            ["all | __first_calling(id) | __with('tool_calls')", "all | __with('tool_calls') | __first_calling(id)"];
        assert!(lists.map(|list| template(head, list, SEARCH, "n.at + 1", "")).contains(&found), "{found}");
    }

    #[test]
    fn other_searches_begin_at_the_beginning() {
        for (condition, count, behind) in [
            ("c.id == id", "n.at + 1", ""),
            ("c.id != id and not s.seen", "n.at + 1", ""),
            ("f(c) and c.id == id and not s.seen", "n.at + 1", ""),
            ("c.id == id and not n.seen", "n.at + 1", ""),
            (SEARCH, "n.at + 2", ""),
            (SEARCH, "n.at + c.n", ""),
            (SEARCH, "n.at + 1", "{{ n.at }}"),
        ] {
            let found = after(&template("", "all", condition, count, behind));
            assert!(!found.contains(super::FIRST), "{found}");
        }
        let found = after(&template("{%- set alias = n -%}", "all", SEARCH, "n.at + 1", "{{ alias.at }}"));
        assert!(!found.contains(super::FIRST), "{found}");
    }
}
