//! How intricate a template may be: reading one takes stack by the length of its longest expression and of its longest chain of
//! `elif`, and a file from anywhere may hold one that takes more than there is.

use minijinja::machinery::{Token, WhitespaceConfig, tokenize};

/// Names, operators and brackets of one tag. Of the templates in llama.cpp's collection none has as many as 100; there are
/// such with tables of hundreds of languages, which are long and not deep.
const TAG: usize = 500;

/// Branches of the conditions of a template, all together. Of those templates none has as many as 50.
const BRANCHES: usize = 400;

/// Bytes of a template. Of those templates none has as many as 20,000.
const BYTES: usize = 1 << 20;

/// Why a template is not read, if it passes a limit.
pub(super) fn passed(source: &str, whitespace: WhitespaceConfig) -> Option<String> {
    if source.len() > BYTES {
        return Some(format!("it has {} bytes, and more than {BYTES} are not read", source.len()));
    }
    let (mut tag, mut branches) = (0, 0);
    // What is no template ends the tokens; its parser says why.
    for (token, span) in tokenize(source, false, Default::default(), whitespace).map_while(Result::ok) {
        match token {
            Token::VariableStart | Token::BlockStart => tag = 0,
            // A list or map may be long.
            Token::TemplateData(_) | Token::Str(_) | Token::String(_) | Token::Int(_) | Token::Comma | Token::Colon => {
            }
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {}
            Token::Ident("elif") if tag == 0 => {
                branches += 1;
                tag += 1;
            }
            _ => tag += 1,
        }
        if tag > TAG {
            return Some(format!(
                "line {} has an expression of more than {TAG} names, operators and brackets",
                span.start_line
            ));
        }
        if branches > BRANCHES {
            return Some(format!("it has more than {BRANCHES} `elif`"));
        }
    }
    None
}

/// Whether a template ends whatever it is rendered with, in any engine: its macros only call those before them, and nothing
/// in it makes long lists of numbers. Templates of which that cannot be told so easily are said not to.
pub(super) fn must_end(source: &str, whitespace: WhitespaceConfig) -> bool {
    let read: Result<Vec<_>, _> = tokenize(source, false, Default::default(), whitespace).collect();
    let Ok(tokens) = read else { return false };
    let token = |at: usize| tokens.get(at).map(|(token, _)| token);
    let begins = |at: usize| at > 0 && matches!(token(at - 1), Some(Token::BlockStart));
    let name = |at: usize| match token(at) {
        Some(Token::Ident(name)) => Some(*name),
        _ => None,
    };
    let macros: Vec<&str> = (0..tokens.len())
        .filter(|at| begins(*at) && name(*at) == Some("macro"))
        .filter_map(|at| name(at + 1))
        .collect();
    let (mut known, mut inside): (Vec<&str>, Option<&str>) = (Vec::new(), None);
    for at in 0..tokens.len() {
        match name(at) {
            Some("range" | "caller" | "recursive" | "import" | "include" | "extends" | "block") => return false,
            Some("macro") if begins(at) => {
                if inside.is_some() || name(at + 1).is_none_or(|new| known.contains(&new)) {
                    return false;
                }
                inside = name(at + 1);
            }
            Some("endmacro") if begins(at) => known.extend(inside.take()),
            Some(called) if macros.contains(&called) => {
                let defined = at > 1 && begins(at - 1) && name(at - 1) == Some("macro");
                let calls = matches!(token(at + 1), Some(Token::ParenOpen));
                let free = at == 0 || !matches!(token(at - 1), Some(Token::Dot));
                let earlier = inside.is_none() || known.contains(&called);
                if !(defined || calls && free && earlier) {
                    return false;
                }
            }
            _ => {}
        }
    }
    inside.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::jinja::WHITESPACE;

    #[test]
    fn what_must_end_is_told_from_the_rest() {
        let ends = |source: &str| must_end(source, WHITESPACE);
        for source in [
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "{% macro f(x) %}{{ x }}{% endmacro %}{% macro g() %}{{ f(1) }}{% endmacro %}{{ g() }} range",
            "{{ f() }}{% macro f() %}a{% endmacro %}",
            "{% if 'range' in messages %}{% endif %}",
        ] {
            assert!(ends(source), "{source}");
        }
        for source in [
            "{% for i in range(9) %}{% endfor %}",
            "{% macro f() %}{{ f() }}{% endmacro %}",
            "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}",
            "{% macro f(x) %}{{ x(x) }}{% endmacro %}{{ f(f) }}",
            "{% macro f() %}{{ a.g() }}{% endmacro %}{% set a.g = f %}",
            "{% macro f() %}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{% macro f() %}{{ g() }}{% endmacro %}{{ f() }}",
            "{% macro f() %}{% macro g() %}{% endmacro %}{{ f() }}{% endmacro %}",
            "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}a{% endcall %}",
            "{% macro f() %}",
            "{{ 'a",
        ] {
            assert!(!ends(source), "{source}");
        }
    }
}
