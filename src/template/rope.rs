//! Texts that a template builds bit by bit (`{% set ns.out = ns.out ~ … %}`): put together in one place, where a text of its
//! own for each bit would take time by the square of the prompt.
//!
//! Only for attributes of which a template does nothing else but print them and ask how they begin or end.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Set, Stmt};
use minijinja::machinery::{WhitespaceConfig, parse};
use minijinja::value::{Object, ObjectRepr, Value as Jinja};
use minijinja::{Error, ErrorKind, State};
use parking_lot::Mutex;

use super::loops::{path, root};
use super::walk::{every, operands};

/// The filter that adds to a text.
pub(super) const ADDED: &str = "__added";

/// A text: the first bytes of one that may have grown since.
#[derive(Debug)]
struct Rope {
    all: Arc<Mutex<String>>,
    bytes: usize,
}

/// A text, or what was made of one here before, with another added to it.
pub(super) fn added(before: &Jinja, more: &str) -> Jinja {
    if let Some(rope) = before.downcast_object_ref::<Rope>() {
        let mut all = rope.all.lock();
        // Otherwise what was added to it before belongs to another text.
        if all.len() == rope.bytes {
            all.push_str(more);
            return Jinja::from_object(Rope { all: Arc::clone(&rope.all), bytes: all.len() });
        }
    }
    let text = format!("{before}{more}");
    Jinja::from_object(Rope { bytes: text.len(), all: Arc::new(Mutex::new(text)) })
}

impl Object for Rope {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call_method(self: &Arc<Self>, _: &State<'_, '_>, method: &str, args: &[Jinja]) -> Result<Jinja, Error> {
        let all = self.all.lock();
        let text = &all[..self.bytes];
        match (method, args.first().and_then(Jinja::as_str)) {
            ("startswith", Some(part)) => Ok(Jinja::from(text.starts_with(part))),
            ("endswith", Some(part)) => Ok(Jinja::from(text.ends_with(part))),
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.all.lock()[..self.bytes])
    }
}

/// Has a template build such texts with [`ADDED`]. One that cannot be read stays as it is.
pub(super) fn roped(source: &str, whitespace: WhitespaceConfig) -> String {
    let Ok(Stmt::Template(template)) = parse(source, "", Default::default(), whitespace) else {
        return source.to_owned();
    };
    let mut sites: Vec<(String, usize, usize)> = Vec::new();
    every(&template.children, &mut |statement| {
        if let Stmt::Set(set) = statement {
            let end = set.span().end_offset as usize;
            sites.extend(grown(set).and_then(|(name, behind)| Some((name, tilde(source, behind)?, end))));
        }
        true
    });
    let names: BTreeSet<&String> = sites.iter().map(|(name, ..)| name).collect();
    let plain: BTreeSet<String> = names.into_iter().filter(|n| !any_use(&template.children, n)).cloned().collect();
    let mut out = source.to_owned();
    for (_, tilde, end) in sites.iter().rev().filter(|(name, ..)| plain.contains(name)) {
        out.insert(*end, ')');
        out.replace_range(*tilde..tilde + 1, &format!("| {ADDED}(\"\" ~"));
    }
    out
}

fn is_concat(op: BinOpKind) -> bool {
    matches!(op, BinOpKind::Concat)
}

/// The attribute that a statement adds to, and the end of its name on the right.
fn grown(set: &Set<'_>) -> Option<(String, usize)> {
    let first = operands(&set.expr, is_concat)[0];
    let (Expr::GetAttr(_), Expr::BinOp(_), Expr::GetAttr(right)) = (&set.target, &set.expr, first) else { return None };
    let name = path(&set.target).filter(|name| path(first).as_ref() == Some(name))?;
    Some((name, right.span().end_offset as usize))
}

/// The `~` that follows.
fn tilde(source: &str, behind: usize) -> Option<usize> {
    let rest = source.get(behind..)?;
    let trimmed = rest.trim_start();
    trimmed.starts_with('~').then_some(behind + rest.len() - trimmed.len())
}

/// Whether statements use an attribute, or all of its namespace, for more than what [`Rope`] can do.
fn any_use(statements: &[Stmt<'_>], name: &str) -> bool {
    let used = |e: &Expr<'_>| is_used(e, name);
    let within = |statements: &[Stmt<'_>]| any_use(statements, name);
    statements.iter().any(|statement| match statement {
        Stmt::EmitRaw(_) | Stmt::Break(_) | Stmt::Continue(_) => false,
        Stmt::EmitExpr(emit) => path(&emit.expr).as_deref() != Some(name) && used(&emit.expr),
        Stmt::Set(set) => match grown(set) {
            Some((grown, _)) if grown == name => operands(&set.expr, is_concat)[1..].iter().any(|e| used(e)),
            _ => used(&set.expr),
        },
        Stmt::ForLoop(l) => {
            used(&l.iter) || l.filter_expr.as_ref().is_some_and(used) || within(&l.body) || within(&l.else_body)
        }
        Stmt::IfCond(both) => used(&both.expr) || within(&both.true_body) || within(&both.false_body),
        Stmt::Macro(found) => found.defaults.iter().any(used) || within(&found.body),
        _ => true,
    })
}

/// As [`any_use`], of an expression.
fn is_used(e: &Expr<'_>, name: &str) -> bool {
    let used = |e: &Expr<'_>| is_used(e, name);
    let some = |e: &Option<Expr<'_>>| e.as_ref().is_some_and(used);
    let arguments = |args: &[CallArg<'_>]| {
        args.iter().any(|arg| match arg {
            CallArg::Pos(e) | CallArg::Kwarg(_, e) | CallArg::PosSplat(e) | CallArg::KwargSplat(e) => used(e),
        })
    };
    match e {
        Expr::Const(_) => false,
        Expr::Var(var) => var.id == root(name),
        Expr::GetAttr(_) | Expr::GetItem(_) if path(e).as_deref() == Some(name) => true,
        Expr::GetAttr(get) => !matches!(&get.expr, Expr::Var(_)) && used(&get.expr),
        Expr::GetItem(get) => used(&get.subscript_expr) || used(&get.expr),
        Expr::Call(call) => match (&call.expr, &call.args[..]) {
            (Expr::GetAttr(get), [CallArg::Pos(Expr::Const(_))])
                if matches!(get.name, "startswith" | "endswith") && path(&get.expr).as_deref() == Some(name) =>
            {
                false
            }
            _ => used(&call.expr) || arguments(&call.args),
        },
        Expr::Slice(s) => used(&s.expr) || some(&s.start) || some(&s.stop) || some(&s.step),
        Expr::UnaryOp(op) => used(&op.expr),
        Expr::BinOp(op) => used(&op.left) || used(&op.right),
        Expr::Compare(c) => used(&c.expr) || c.ops.iter().any(|o| used(&o.expr)),
        Expr::IfExpr(i) => used(&i.test_expr) || used(&i.true_expr) || some(&i.false_expr),
        Expr::Filter(f) => some(&f.expr) || arguments(&f.args),
        Expr::Test(t) => used(&t.expr) || arguments(&t.args),
        Expr::List(list) => list.items.iter().any(used),
        Expr::Map(map) => map.keys.iter().chain(&map.values).any(used),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(source: &str) -> String {
        roped(source, WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true })
    }

    #[test]
    fn a_text_that_is_only_built_and_printed_is_added_to() {
        let start = "{%- set ns = namespace(out='') -%}";
        let asked =
            "{%- if ns.out.endswith('x') -%}{%- set ns.out = ns.out ~ (m | trim) -%}{%- endif -%}{{- ns.out -}}";
        let built = "{%- set ns.out = ns.out\n  ~ 'a' ~ m -%}";
        let expect = "{%- set ns.out = ns.out\n  | __added(\"\" ~ 'a' ~ m) -%}";
        let other = asked.replace("ns.out ~ (m | trim)", "ns.out | __added(\"\" ~ (m | trim))");
        assert_eq!(after(&format!("{start}{built}{asked}")), format!("{start}{expect}{other}"));
        for more in [
            "{{ ns.out | trim }}",
            "{{ f(ns) }}",
            "{%- if ns.out -%}{%- endif -%}",
            "{{ ns[key] }}",
            "{{ 'a' ~ ns.out }}",
        ] {
            let kept = format!("{start}{built}{more}");
            assert_eq!(after(&kept), kept);
        }
    }

    #[test]
    fn a_text_stays_what_it_was_when_another_grows_out_of_it() {
        let one = added(&Jinja::from("a"), "b");
        let two = added(&one, "c");
        let other = added(&one, "d");
        let texts = [&one, &two, &other, &added(&two, "e")].map(ToString::to_string);
        assert_eq!(texts, ["ab", "abc", "abd", "abce"]);
    }
}
