//! Source code (with or without line numbers), disassembly and minified code: definitions, constants, notes.

use super::fit::Draft;
use super::signal::{Grade, Graded};

/// What a line of code defines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Definition {
    /// A function, type, module, class, interface.
    Item,
    /// A named constant with a literal value.
    Constant,
}

/// Words that may stand before what is defined.
const MODIFIERS: &[&str] = &[
    "pub",
    "pub(crate)",
    "pub(super)",
    "export",
    "default",
    "async",
    "static",
    "public",
    "private",
    "protected",
    "internal",
    "abstract",
    "final",
    "override",
    "unsafe",
    "extern",
    "inline",
    "virtual",
    "sealed",
    "readonly",
    "declare",
    "open",
    "data",
    "suspend",
    "partial",
    "constexpr",
    "typedef",
];

/// Words that define an item.
const ITEMS: &[&str] = &[
    "fn",
    "def",
    "class",
    "struct",
    "enum",
    "trait",
    "impl",
    "mod",
    "interface",
    "function",
    "func",
    "type",
    "namespace",
    "module",
    "union",
    "macro_rules!",
    "record",
    "object",
    "fun",
    "protocol",
    "extension",
    "sub",
    "proc",
    "package",
    "template",
    "impl<T>",
    "function*",
    "defmodule",
    "defp",
    "service",
    "message",
];

/// What a line (without its line number) defines, if anything.
pub(crate) fn definition(line: &str) -> Option<Definition> {
    let line = line.trim_start();
    if let Some(rest) = line.strip_prefix("#define ") {
        return rest.split_ascii_whitespace().nth(1).map(|_| Definition::Constant);
    }
    if line.starts_with("CREATE TABLE") || line.starts_with("create table") {
        return Some(Definition::Item);
    }
    let mut words = line.split_ascii_whitespace();
    let mut first = words.next()?;
    let mut steps = 0;
    while MODIFIERS.contains(&first) && steps < 5 {
        first = words.next()?;
        steps += 1;
    }
    if ITEMS.contains(&first) || first.starts_with("impl<") || first.starts_with("func(") {
        // `type` and `object` begin prose too; what follows must be a name.
        let name = words.next().unwrap_or("");
        return name
            .starts_with(|c: char| c.is_alphabetic() || matches!(c, '_' | '(' | '<' | '*' | '$'))
            .then_some(Definition::Item);
    }
    if constant(line) {
        return Some(Definition::Constant);
    }
    // C, C++, Java, C#: `type name(args) {` at the left edge or after a modifier.
    let calls = line.ends_with('{') && line.contains('(') && line.contains(')');
    let flow = [
        "if", "for", "while", "switch", "else", "catch", "match", "return", "}", "do", "try", "with", "unless", "elif",
    ];
    let head = line.split(['(', ' ']).next().unwrap_or("");
    (calls
        && !flow.contains(&head)
        && !line.contains(" = ")
        && !line.contains("=>")
        && !line.starts_with(['.', '/', '(', '*']))
    .then_some(Definition::Item)
}

/// `const NAME: u64 = 18437;`, `MAX_RETRIES = 5`, `static final int X = 3`, `let port = 8080` at the left edge only.
fn constant(line: &str) -> bool {
    let Some((left, right)) = line.split_once('=') else { return false };
    if right.starts_with(['=', '>'])
        || left.ends_with(['!', '<', '>', '+', '-', '*', '|', '&', ':', '?']) && !left.ends_with(":")
    {
        return false;
    }
    let right = right.trim_start();
    let literal = right.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '"' | '\'' | '-' | '`'))
        || right.starts_with("0x")
        || right.contains("::from_")
        || right.starts_with("b\"");
    if !literal || right.contains('(') && right.starts_with(['-', '\'']) {
        return false;
    }
    let named = |w: &str| {
        let w = w.trim_end_matches([':', ',']);
        w.len() > 2
            && w.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
            && w.starts_with(|c: char| c.is_ascii_uppercase())
    };
    let words: Vec<&str> = left.split_ascii_whitespace().take(8).collect();
    let keyword = words.iter().any(|w| matches!(*w, "const" | "static" | "constexpr" | "final" | "val"));
    keyword || words.iter().any(|w| named(w)) && words.len() <= 5
}

/// The code of a line that may begin with its number, as `cat -n`, editors and read tools print it.
pub(crate) fn unnumbered(line: &str) -> (Option<u64>, &str) {
    let body = line.trim_start_matches([' ', '\t', 'L']);
    let digits = body.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 || digits > 7 {
        return (None, line);
    }
    let rest = &body[digits..];
    let number = body[..digits].parse().ok();
    for mark in ["\t", "→", " | ", "| ", "|", ": ", ":", "  ", " "] {
        if let Some(code) = rest.strip_prefix(mark) {
            return (number, code);
        }
    }
    if rest.is_empty() { (number, "") } else { (None, line) }
}

/// Drafts source code.
pub(super) fn source(graded: &Graded<'_>) -> Draft {
    let mut draft = Draft::default();
    let (mut items, mut constants, mut marks, mut imports) = (0, 0, 0, 0);
    for (i, line) in graded.lines.iter().enumerate() {
        let (_, code) = unnumbered(line);
        let indent = (code.len() - code.trim_start().len()) / if code.starts_with('\t') { 1 } else { 4 };
        let depth = indent.min(6) as u16;
        let body = code.trim_start();
        if graded.grades[i] == Grade::Mark {
            marks += 1;
            draft.line(i, 94, line);
        } else if let Some(found) = definition(code) {
            match found {
                Definition::Item => items += 1,
                Definition::Constant => constants += 1,
            }
            draft.line(i, if found == Definition::Constant { 91 } else { 90 } - depth * 4, line);
        } else if ["import ", "use ", "from ", "#include", "require(", "using "].iter().any(|w| body.starts_with(w)) {
            imports += 1;
            draft.line(i, 40, line);
        } else if graded.grades[i] == Grade::Error && !code.contains(['(', '{']) {
            draft.line(i, 92, line);
        } else if body.starts_with("///")
            || body.starts_with("\"\"\"")
            || body.starts_with("/**")
            || body.starts_with("//!")
        {
            draft.line(i, 46, line);
        } else if body.starts_with("raise ")
            || body.starts_with("throw ")
            || body.starts_with('@')
            || body.starts_with("#[")
        {
            draft.line(i, 38, line);
        }
    }
    draft.numbered = graded.lines.iter().take(8).filter(|l| unnumbered(l).0.is_some()).count() >= 4;
    draft.summary =
        format!("{items} definitions, {constants} constants, {marks} notes (TODO, HACK, …), {imports} imports");
    let last = graded.lines.len().saturating_sub(1);
    for i in [0, last] {
        if let Some(line) = graded.lines.get(i).filter(|_| draft.pieces.iter().all(|p| p.line != i)) {
            draft.line(i, 60, line);
        }
    }
    draft
}

/// Drafts a disassembly or symbol listing: section and symbol heads, and how many instructions each has.
pub(super) fn disassembly(graded: &Graded<'_>) -> Draft {
    let mut draft = Draft::default();
    let mut symbols: Vec<(usize, usize)> = Vec::new();
    for (i, line) in graded.lines.iter().enumerate() {
        if line.ends_with(">:") {
            symbols.push((i, 0));
        } else if line.starts_with("Disassembly of") || line.contains("file format") {
            draft.line(i, 95, line);
        } else if line.starts_with(' ') {
            if let Some(last) = symbols.last_mut() {
                last.1 += 1;
            }
            if line.contains("call") {
                draft.line(i, 50, line);
            }
        }
    }
    draft.summary = format!("{} symbols, {} instructions", symbols.len(), symbols.iter().map(|s| s.1).sum::<usize>());
    for (line, count) in symbols {
        draft.remark(line, 90, format!("{} ({count} instructions)", super::clean::shorten(graded.lines[line], 300)));
    }
    draft
}

/// Drafts minified code: its licence head, the names it defines, its beginning and end.
pub(super) fn minified(graded: &Graded<'_>, text: &str) -> Draft {
    let mut draft = Draft::default();
    for (i, line) in graded.lines.iter().enumerate().take(12) {
        if line.len() < 200 {
            draft.line(i, 90 - i as u16, line);
        }
    }
    let mut names: Vec<&str> = Vec::new();
    for word in ["function ", "class ", "registerLanguage(\"", "exports.", "export{", "@media ", "define(\""] {
        let mut seen = std::collections::HashSet::new();
        for at in memchr::memmem::find_iter(text.as_bytes(), word.as_bytes()).take(4000) {
            let rest = &text[at + word.len()..];
            let end =
                rest.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '$' | '-' | '.'))).unwrap_or(rest.len());
            let name = &rest[..end];
            // One and two letters are names the minifier made.
            if name.len() > 2 && name.len() < 60 && seen.insert(name) {
                names.push(name);
            }
        }
    }
    draft.summary = format!("minified code; {} names that still mean something", names.len());
    for chunk in names.chunks(16).take(40) {
        draft.top(80, chunk.join(", "));
    }
    for (rank, i) in [(70, 0), (60, graded.lines.len().saturating_sub(1))] {
        if let Some(line) = graded.lines.get(i).filter(|_| draft.pieces.iter().all(|p| p.lines == 0 || p.line != i)) {
            draft.line(i, rank, line);
        }
    }
    draft
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions() {
        for line in [
            "pub fn open(&mut self) -> Result<()> {",
            "    def get(self):",
            "export default class A extends B {",
            "export async function run(x) {",
            "impl<T> Foo for Bar {",
            "func (s *Server) Start() error {",
            "static int parse(const char *s) {",
            "public static void main(String[] args) {",
            "type Lease = u64;",
        ] {
            assert_eq!(definition(line), Some(Definition::Item), "{line}");
        }
        for line in [
            "pub const RETRY_BUDGET_MS: u64 = 18437;",
            "MAX_OPEN = 5",
            "#define CAP 12",
            "private static final int X1 = 3;",
            "export const PORT = 8080;",
        ] {
            assert_eq!(definition(line), Some(Definition::Constant), "{line}");
        }
        for line in [
            "let x = self.a.b(3)?;",
            "if a.len() > 3 {",
            "    }",
            "for (int i = 0; i < 3; i++) {",
            "return f(x);",
            "// fn old",
            "type of thing",
        ] {
            assert_ne!(definition(line), Some(Definition::Constant), "{line}");
            if line != "type of thing" {
                assert_eq!(definition(line), None, "{line}");
            }
        }
    }

    #[test]
    fn numbers_are_taken_off() {
        for (line, number, code) in [
            ("     1\tuse std;", Some(1), "use std;"),
            ("  812  pub const A: u8 = 1;", Some(812), "pub const A: u8 = 1;"),
            ("462 | \tchildren", Some(462), "\tchildren"),
            ("12:x", Some(12), "x"),
            ("let a", None, "let a"),
        ] {
            assert_eq!(unnumbered(line), (number, code), "{line}");
        }
    }
}
