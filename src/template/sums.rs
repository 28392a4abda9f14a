//! Texts that a template adds up only to put out the sum: put out one after the other, where each sum would be a copy of all
//! that is in it.
//!
//! Only where both sides of a `+` are texts for certain: its right side is one, and there is one in its left, which
//! therefore is a text itself, or fails.

use std::collections::BTreeSet;

use minijinja::machinery::ast::{BinOpKind, EmitExpr, Expr, Spanned, Stmt};
use minijinja::machinery::{WhitespaceConfig, parse};

use super::macros::bare;
use super::walk::{every, operands};

/// Divides such sums. A template that cannot be read stays as it is.
pub(super) fn divided(source: &str, whitespace: WhitespaceConfig) -> String {
    let Ok(Stmt::Template(template)) = parse(source, "", Default::default(), whitespace) else {
        return source.to_owned();
    };
    let named = |s: &Stmt<'_>| if let Stmt::Macro(found) = s { Some(found.name.to_owned()) } else { None };
    let macros: BTreeSet<String> = template.children.iter().filter_map(named).collect();
    let mut places = Vec::new();
    every(&template.children, &mut |statement| {
        if let Stmt::EmitExpr(emit) = statement {
            places.extend(pluses(source, emit, &macros).unwrap_or_default());
        }
        true
    });
    let mut out = source.to_owned();
    places.into_iter().rev().for_each(|at| out.replace_range(at..=at, "-}}{{-"));
    out
}

/// Where the additions stand that need not be made.
fn pluses(source: &str, emit: &Spanned<EmitExpr<'_>>, macros: &BTreeSet<String>) -> Option<Vec<usize>> {
    let terms = operands(&emit.expr, |op| matches!(op, BinOpKind::Add));
    let span = emit.span();
    let text = source.get(span.start_offset as usize..span.end_offset as usize)?;
    let begin = text.strip_prefix("{{")?.trim_start_matches(['-', '+']);
    let first = span.start_offset as usize + text.len() - begin.len();
    let places: Vec<usize> = bare(begin).filter(|(_, c)| *c == '+').map(|(at, _)| first + at).collect();
    if terms.len() < 2 || places.len() + 1 != terms.len() {
        return None;
    }
    let is_text = |e: &Expr<'_>| match e {
        Expr::Const(text) => text.value.as_str().is_some(),
        Expr::Call(call) => matches!(&call.expr, Expr::Var(var) if macros.contains(var.id)),
        _ => false,
    };
    let mut certain = is_text(terms[0]);
    let mut out = Vec::new();
    for (term, at) in terms[1..].iter().zip(places) {
        let this = is_text(term);
        out.extend((certain && this).then_some(at));
        certain |= this;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(source: &str) -> String {
        divided(source, WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true })
    }

    #[test]
    fn a_sum_is_divided_where_both_sides_are_texts() {
        let f = "{%- macro f(x) -%}{{ '<' + x + '>' }}{%- endmacro -%}";
        let divided = "{%- macro f(x) -%}{{ '<' + x -}}{{- '>' }}{%- endmacro -%}";
        for (sum, expect) in [
            ("{{- 'a' + m['+'] + 'b' -}}", "{{- 'a' + m['+'] -}}{{- 'b' -}}"),
            ("{{ m + f(m) + ('b' + m) + f(1 + 2) }}", "{{ m + f(m) + ('b' + m) -}}{{- f(1 + 2) }}"),
            ("{{- 'a' + m.b | trim + \"+\" + 'c' }}", "{{- 'a' + m.b | trim -}}{{- \"+\" -}}{{- 'c' }}"),
        ] {
            assert_eq!(after(&format!("{f}{sum}")), format!("{divided}{expect}"));
        }
        for kept in [
            // Numbers, for all that is known; other operators; a choice; what is only kept.
            "{{ m + 'a' }}",
            "{{ 1 + 2 + g() }}",
            "{{ 'a' + m * 2 }}",
            "{{ 'a' + 'b' if m else 'c' }}",
            "{%- set a = 'a' + 'b' -%}",
            "{% if %}",
        ] {
            assert_eq!(after(kept), kept);
        }
    }
}
