//! Loops of chat templates that look for one message among all: ended, or shortened, where the rest of them does nothing.
//! Templates do so once a message, which makes a prompt take time by the square of its messages.
//!
//! Only what is proved from the template's own text is changed; a rewritten template renders what the given one does. The
//! proofs rest on what `minijinja` does: names, constants, attributes of names and their comparison have no effect and never
//! fail, since what is missing is merely undefined here.

use minijinja::machinery::ast::{BinOp, BinOpKind, CallArg, CompareOpKind, Expr, ForLoop, Spanned, Stmt, UnaryOpKind};
use minijinja::machinery::{WhitespaceConfig, parse};

use super::walk::every;
use super::{numbers, scans};

/// The filter that leaves of a list of messages those with a call of an id, and maybe others.
pub(super) const CALLING: &str = "__calling";

/// The filter that leaves of a list of messages those with an attribute.
pub(super) const WITH: &str = "__with";

/// A text to put into a template, and before which byte.
pub(super) type Insert = (usize, String);

/// Shortens the loops of a template, which is read with these rules for white space. One that cannot be read stays as it is.
pub(super) fn shortened(source: &str, whitespace: WhitespaceConfig) -> String {
    let Ok(Stmt::Template(template)) = parse(source, "", Default::default(), whitespace) else {
        return source.to_owned();
    };
    let mut inserts = numbers::begun(source, &template.children);
    every(&template.children, &mut |statement| {
        if let Stmt::ForLoop(found) = statement {
            inserts.extend(ended(source, found));
            inserts.extend(only_calling(source, found).or_else(|| only_with(source, found)));
            inserts.extend(scans::ended(source, found));
        }
        true
    });
    inserts.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    let mut out = source.to_owned();
    inserts.into_iter().for_each(|(at, text)| out.insert_str(at, &text));
    out
}

/// A loop of nothing but one `if`, all of whose iterations do nothing once a flag is set: it ends there.
fn ended(source: &str, found: &Spanned<ForLoop<'_>>) -> Option<Insert> {
    let [Stmt::IfCond(only)] = &found.body[..] else { return None };
    if !found.else_body.is_empty() || found.recursive {
        return None;
    }
    let fixed = |name: &str| name != "loop" && !mentions(&found.target, name) && !rebinds(&found.body, name);
    let stop = match &only.expr {
        // Nothing is done while it is set.
        flag if only.true_body.is_empty() => path(flag).filter(|p| fixed(root(p)))?,
        // Nothing is done unless all of these hold; those before the flag are asked in vain.
        all if only.false_body.is_empty() => operands(all).into_iter().find_map(|operand| {
            let (flag, wanted) = operand.flag()?;
            fixed(root(&flag)).then(|| if wanted { format!("not {flag}") } else { flag })
        })?,
        _ => return None,
    };
    let at = behind_tag(source, only.span().end_offset as usize)?;
    Some((at, format!("{{%- if {stop} -%}}{{%- break -%}}{{%- endif -%}}")))
}

/// A loop over messages that does nothing but for calls of one id: it need not see messages without any.
fn only_calling(source: &str, found: &Spanned<ForLoop<'_>>) -> Option<Insert> {
    let (Expr::Var(message), Expr::Var(list)) = (&found.target, &found.iter) else { return None };
    if found.filter_expr.is_some() || !found.else_body.is_empty() || found.recursive {
        return None;
    }
    let [statement] = &found.body[..] else { return None };
    let calls = match statement {
        Stmt::ForLoop(calls) => calls,
        Stmt::IfCond(guard) => match (&guard.true_body[..], &guard.false_body[..]) {
            ([Stmt::ForLoop(calls)], []) if asks(&guard.expr, message.id) => calls,
            _ => return None,
        },
        _ => return None,
    };
    let Expr::Var(call) = &calls.target else { return None };
    if calls.filter_expr.is_some() || !calls.else_body.is_empty() || calls.recursive {
        return None;
    }
    let [Stmt::IfCond(only)] = &calls.body[..] else { return None };
    if path(&calls.iter)? != format!("{}.tool_calls", message.id) || !only.false_body.is_empty() {
        return None;
    }
    let own = [message.id, call.id, "loop"];
    let id = operands(&only.expr).into_iter().find_map(|operand| operand.equals(&format!("{}.id", call.id)))?;
    let known = root(&id).to_owned();
    if own.contains(&known.as_str()) || assigns(&only.true_body, &known) || assigns(&only.true_body, list.id) {
        return None;
    }
    let at = list.span().end_offset as usize;
    source[..at].ends_with(list.id).then(|| (at, format!(" | {CALLING}({id})")))
}

/// A loop over messages that does nothing but for those with an attribute, and does not ask where it is: it need not see
/// the others.
fn only_with(source: &str, found: &Spanned<ForLoop<'_>>) -> Option<Insert> {
    let (Expr::Var(message), Expr::Var(list)) = (&found.target, &found.iter) else { return None };
    if found.filter_expr.is_some() || !found.else_body.is_empty() || found.recursive {
        return None;
    }
    let [Stmt::IfCond(guard)] = &found.body[..] else { return None };
    let at = list.span().end_offset as usize;
    let body = source.get(at..found.span().end_offset as usize)?;
    if !guard.false_body.is_empty() || body.contains("loop") || !source[..at].ends_with(list.id) {
        return None;
    }
    let mut all = Vec::new();
    conjunction(&guard.expr, &mut all);
    let name = path(all.first()?)?;
    let attribute = name.strip_prefix(message.id)?.strip_prefix('.').filter(|a| !a.contains('.'))?;
    Some((at, format!(" | {WITH}('{attribute}')")))
}

/// A condition that has to hold, asked after others that have no effect.
enum Operand<'a, 's> {
    Holds(&'a Expr<'s>),
    Fails(&'a Expr<'s>),
}

impl Operand<'_, '_> {
    /// A name that has to be true, or false.
    fn flag(&self) -> Option<(String, bool)> {
        match self {
            Operand::Holds(e) => Some((path(e)?, true)),
            Operand::Fails(e) => Some((path(e)?, false)),
        }
    }

    /// The name that has to be equal to this one.
    fn equals(&self, name: &str) -> Option<String> {
        let Operand::Holds(e) = self else { return None };
        equals(e, name)
    }
}

/// The name that is asked to be equal to this one.
pub(super) fn equals(e: &Expr<'_>, name: &str) -> Option<String> {
    let (left, right) = equal(e)?;
    let (left, right) = (path(left)?, path(right)?);
    if left == name { Some(right) } else { (right == name).then_some(left) }
}

/// The two sides of `==`.
fn equal<'a, 's>(e: &'a Expr<'s>) -> Option<(&'a Expr<'s>, &'a Expr<'s>)> {
    match e {
        Expr::BinOp(op) if matches!(op.op, BinOpKind::Eq) => Some((&op.left, &op.right)),
        Expr::Compare(compare) => match &compare.ops[..] {
            [one] if matches!(one.op, CompareOpKind::Eq) => Some((&compare.expr, &one.expr)),
            _ => None,
        },
        _ => None,
    }
}

/// The operands of a conjunction, up to the first that is not known to be without effect, that one included.
fn operands<'a, 's>(e: &'a Expr<'s>) -> Vec<Operand<'a, 's>> {
    let mut flat = Vec::new();
    conjunction(e, &mut flat);
    let known = flat.iter().take_while(|e| is_pure(e)).count();
    flat.truncate(known + 1);
    let operand = |e: &'a Expr<'s>| match e {
        Expr::UnaryOp(not) if matches!(not.op, UnaryOpKind::Not) => Operand::Fails(&not.expr),
        _ => Operand::Holds(e),
    };
    flat.into_iter().map(operand).collect()
}

pub(super) fn conjunction<'a, 's>(e: &'a Expr<'s>, out: &mut Vec<&'a Expr<'s>>) {
    match e {
        Expr::BinOp(op) if matches!(op.op, BinOpKind::ScAnd) => {
            conjunction(&op.left, out);
            conjunction(&op.right, out);
        }
        _ => out.push(e),
    }
}

/// A name with attributes, as it may be written: `a.b['c']` is `a.b.c`.
pub(super) fn path(e: &Expr<'_>) -> Option<String> {
    match e {
        Expr::Var(var) => Some(var.id.to_owned()),
        Expr::GetAttr(get) => Some(format!("{}.{}", path(&get.expr)?, get.name)),
        Expr::GetItem(get) => {
            let Expr::Const(key) = &get.subscript_expr else { return None };
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let key =
                key.value.as_str().filter(|k| k.chars().all(plain) && k.starts_with(|c: char| !c.is_ascii_digit()))?;
            Some(format!("{}.{key}", path(&get.expr)?))
        }
        _ => None,
    }
}

/// The variable of a [`path`].
pub(super) fn root(path: &str) -> &str {
    path.split('.').next().unwrap_or(path)
}

/// Whether an expression has no effect and cannot fail.
pub(super) fn is_pure(e: &Expr<'_>) -> bool {
    match e {
        Expr::Const(_) => true,
        Expr::UnaryOp(not) => matches!(not.op, UnaryOpKind::Not) && is_pure(&not.expr),
        Expr::BinOp(op) => {
            let plain = matches!(op.op, BinOpKind::ScAnd | BinOpKind::ScOr | BinOpKind::Eq | BinOpKind::Ne);
            plain && is_pure(&op.left) && is_pure(&op.right)
        }
        Expr::Compare(compare) => {
            let plain = |op: CompareOpKind| matches!(op, CompareOpKind::Eq | CompareOpKind::Ne);
            is_pure(&compare.expr) && compare.ops.iter().all(|o| plain(o.op) && is_pure(&o.expr))
        }
        Expr::Test(test) => {
            const PLAIN: [&str; 5] = ["defined", "undefined", "none", "string", "mapping"];
            PLAIN.contains(&test.name) && test.args.is_empty() && is_pure(&test.expr)
        }
        _ => path(e).is_some(),
    }
}

/// Whether a condition on a message, a map, has no effect and cannot fail.
pub(super) fn asks(e: &Expr<'_>, message: &str) -> bool {
    let mut flat = Vec::new();
    conjunction(e, &mut flat);
    flat.into_iter().all(|e| match e {
        Expr::Call(call) => match (&call.expr, &call.args[..]) {
            (Expr::GetAttr(get), [CallArg::Pos(Expr::Const(_))]) => {
                get.name == "get" && path(&get.expr).as_deref() == Some(message)
            }
            _ => false,
        },
        Expr::BinOp(op) if matches!(op.op, BinOpKind::In) => has(op, message),
        Expr::UnaryOp(not) => {
            is_pure(e) && !mentions(e, "loop") || matches!(&not.expr, Expr::BinOp(op) if has(op, message))
        }
        e => is_pure(e) && !mentions(e, "loop"),
    })
}

/// Whether it is asked if a message, a map, has a key.
fn has(op: &BinOp<'_>, message: &str) -> bool {
    matches!((op.op, &op.left, &op.right), (BinOpKind::In, Expr::Const(_), Expr::Var(var)) if var.id == message)
}

/// Whether an expression of names, or of what is [`is_pure`], names this variable.
pub(super) fn mentions(e: &Expr<'_>, name: &str) -> bool {
    match e {
        Expr::Var(var) => var.id == name,
        Expr::List(list) => list.items.iter().any(|e| mentions(e, name)),
        Expr::UnaryOp(op) => mentions(&op.expr, name),
        Expr::BinOp(op) => mentions(&op.left, name) || mentions(&op.right, name),
        Expr::Compare(c) => mentions(&c.expr, name) || c.ops.iter().any(|o| mentions(&o.expr, name)),
        Expr::Test(test) => mentions(&test.expr, name),
        Expr::GetAttr(get) => mentions(&get.expr, name),
        Expr::GetItem(get) => mentions(&get.expr, name),
        Expr::Const(_) => false,
        _ => true,
    }
}

/// Whether statements may set a variable, or an attribute of it.
fn assigns(statements: &[Stmt<'_>], name: &str) -> bool {
    statements.iter().any(|statement| match statement {
        Stmt::Set(set) => mentions(&set.target, name),
        Stmt::IfCond(both) => assigns(&both.true_body, name) || assigns(&both.false_body, name),
        // What a call does is not known.
        Stmt::EmitExpr(emit) => path(&emit.expr).is_none(),
        Stmt::EmitRaw(_) | Stmt::Break(_) | Stmt::Continue(_) => false,
        _ => true,
    })
}

/// Whether statements may give a name another value until the iteration ends: what an iteration sets is gone behind it.
fn rebinds(statements: &[Stmt<'_>], name: &str) -> bool {
    let is = |target: &Expr<'_>| match target {
        Expr::GetAttr(_) => false,
        target => mentions(target, name),
    };
    statements.iter().any(|statement| match statement {
        Stmt::Set(set) => is(&set.target),
        Stmt::SetBlock(set) => is(&set.target) || rebinds(&set.body, name),
        Stmt::IfCond(both) => rebinds(&both.true_body, name) || rebinds(&both.false_body, name),
        // These have variables of their own.
        Stmt::ForLoop(_) | Stmt::EmitExpr(_) | Stmt::EmitRaw(_) | Stmt::Do(_) | Stmt::Break(_) | Stmt::Continue(_) => {
            false
        }
        _ => true,
    })
}

/// Behind the tag whose last word ends here.
pub(super) fn behind_tag(source: &str, word: usize) -> Option<usize> {
    let rest = source.get(word..)?;
    let end = rest.find("%}")?;
    let between = rest[..end].trim();
    matches!(between, "" | "-" | "+").then_some(word + end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(source: &str) -> String {
        shortened(source, WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true })
    }

    #[test]
    fn a_loop_ends_where_its_flag_says_that_nothing_follows() {
        let stop = |flag: &str| format!("{{%- if {flag} -%}}{{%- break -%}}{{%- endif -%}}");
        for (body, flag) in [
            ("{%- if not ns.found -%}{{ m }}{%- set ns.found = true -%}{%- endif %}", "ns.found"),
            ("{%- if ns.done -%}{%- elif m.a -%}{{ m }}{%- endif -%}", "ns.done"),
            ("{%- if m.role == 'user' and ns.open and f(m) -%}{%- set ns.open = false -%}{%- endif -%}", "not ns.open"),
        ] {
            let source = format!("{{%- for m in messages -%}}{body}{{%- endfor -%}}");
            let expect = format!("{{%- for m in messages -%}}{body}{}{{%- endfor -%}}", stop(flag));
            assert_eq!(after(&source), expect);
        }
        for kept in [
            // It prints, it is forgotten, it is the message's own, it has another branch, something may fail before it.
            "{%- for m in messages -%} x {%- if not ns.found -%}{{ m }}{%- endif -%}{%- endfor -%}",
            "{%- for m in messages -%}{%- if not found -%}{%- set found = true -%}{%- endif -%}{%- endfor -%}",
            "{%- for m in messages -%}{%- if not m.found -%}{{ m }}{%- endif -%}{%- endfor -%}",
            "{%- for m in messages -%}{%- if not ns.found -%}{{ m }}{%- else -%}x{%- endif -%}{%- endfor -%}",
            "{%- for m in messages -%}{%- if f(m) and not ns.found -%}{{ m }}{%- endif -%}{%- endfor -%}",
            "{%- for m in messages -%}{%- if not ns.found -%}{{ m }}{%- endif -%}{%- else -%}x{%- endfor -%}",
            "{% if %}",
        ] {
            assert_eq!(after(kept), kept);
        }
    }

    #[test]
    fn a_loop_that_looks_for_a_call_sees_only_messages_with_it() {
        let source = |list: &str, guard: &str, id: &str, act: &str| {
            format!(
                "{{%- for m in {list} -%}}{{%- if {guard} -%}}{{%- for c in m['tool_calls'] -%}}{{%- if {id} -%}}{act}\
                 {{%- endif -%}}{{%- endfor -%}}{{%- endif -%}}{{%- endfor -%}}"
            )
        };
        let (guard, id, act) = ("m.tool_calls", "c.id == wanted", "{{ c.function.name }}");
        let changed = |id: &str, act: &str| after(&source("messages", guard, id, act));
        assert_eq!(changed(id, act), source("messages | __calling(wanted)", guard, id, act));
        let get = |list: &str| source(list, "m.get('tool_calls')", id, act);
        assert_eq!(after(&get("messages")), get("messages | __calling(wanted)"));
        let (id, act) = ("t.id is not none and t.id == c['id']", "{%- set ns.name = c.function.name -%}");
        assert_eq!(changed(id, act), source("messages | __calling(t.id)", guard, id, act));
        for (guard, id, act) in [
            ("f(m)", "c.id == wanted", "x"),
            ("n.get('tool_calls')", "c.id == wanted", "x"),
            (guard, "c.id != wanted", "x"),
            (guard, "c.id == m.wanted", "x"),
            (guard, "f(c) and c.id == wanted", "x"),
            (guard, "c.id == ns.wanted", "{%- set ns.wanted = ns.wanted + 1 -%}"),
            (guard, "c.id == wanted", "{{ f() }}"),
            (guard, "c.id == wanted", "x{%- else -%}y"),
            ("loop.first", "c.id == wanted", "x"),
        ] {
            let kept = source("messages", guard, id, act);
            let shorter = source("messages | __with('tool_calls')", guard, id, act);
            assert!([kept.clone(), shorter].contains(&after(&kept)), "{}", after(&kept));
        }
    }

    #[test]
    fn a_loop_for_messages_with_calls_sees_only_those() {
        let source = |list: &str, guard: &str, body: &str| {
            format!("{{%- for m in {list} -%}}{{%- if {guard} -%}}{body}{{%- endif -%}}{{%- endfor -%}}")
        };
        for guard in ["m.tool_calls", "m['tool_calls'] and f(m)"] {
            let expect = source("messages | __with('tool_calls')", guard, "{{ f(m) }}");
            assert_eq!(after(&source("messages", guard, "{{ f(m) }}")), expect);
        }
        for (guard, body) in [
            ("m.tool_calls", "{{ loop.index }}"),
            ("loop.first and m.tool_calls", "x"),
            ("m", "x"),
            ("not m.tool_calls", "x"),
            ("m.tool_calls or m.name", "x"),
            ("n.tool_calls", "x"),
            ("m.tool_calls", "x{%- else -%}y"),
        ] {
            let kept = source("messages", guard, body);
            assert!(!after(&kept).contains(WITH), "{}", after(&kept));
        }
    }
}
