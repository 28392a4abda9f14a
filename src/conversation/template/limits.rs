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
