//! Macros of chat templates, put in place of their calls: a call costs as much as a dozen other statements, and templates that
//! have macros call several for each message.
//!
//! Only calls that are put out as they are (`{{ close_tag('message') }}`), outside of other macros, and only where it is proved
//! from the template's own text that a block with the macro's statements prints the same: `minijinja` lets a macro see its
//! arguments and what is set outside of all blocks, and a block sees what is set around it, too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use minijinja::Environment;
use minijinja::machinery::ast::{Call, CallArg, EmitExpr, Expr, Macro, Spanned, Stmt};
use minijinja::machinery::{WhitespaceConfig, parse};
use regex::Regex;

use super::walk::every;

/// Macros that call each other are followed this deep.
const DEPTH: usize = 8;

/// A template does not grow beyond this many bytes.
const LARGEST: usize = 1 << 18;

/// A macro that may be put in place of its calls.
#[derive(Debug)]
struct Inline {
    /// Names, and what each is without an argument.
    parameters: Vec<(String, Option<String>)>,
    /// What stands between its tags.
    body: String,
    /// How the first tag treats the white space after it, and the last one that before it: `-`, `+` or nothing.
    trims: (String, String),
}

/// Puts macros in place of their calls. A template that cannot be read stays as it is.
pub(super) fn inlined(source: &str, whitespace: WhitespaceConfig) -> String {
    let mut out = source.to_owned();
    let Some(macros) = read(source, whitespace).map(|all| known(source, statements(&all))).filter(|m| !m.is_empty())
    else {
        return out;
    };
    for _ in 0..DEPTH {
        let next = read(&out, whitespace).map(|all| replaced(&out, statements(&all), &macros)).unwrap_or_default();
        if next == out || read(&next, whitespace).is_none() {
            break;
        }
        out = next;
    }
    out
}

fn read(source: &str, whitespace: WhitespaceConfig) -> Option<Stmt<'_>> {
    match parse(source, "", Default::default(), whitespace) {
        Ok(all @ Stmt::Template(_)) => Some(all),
        _ => None,
    }
}

/// The statements of a template.
fn statements<'a, 's>(all: &'a Stmt<'s>) -> &'a [Stmt<'s>] {
    if let Stmt::Template(template) = all { &template.children } else { &[] }
}

/// The macros of a template that see nothing where they are called that they would not see where they are declared.
fn known(source: &str, all: &[Stmt<'_>]) -> BTreeMap<String, Inline> {
    let mut out = BTreeMap::new();
    for statement in all {
        let Stmt::Macro(found) = statement else { continue };
        // What has a value of its own in some block may have it where the macro is called.
        let mut around = Bound::default();
        around.statements(all.iter().filter(|other| !std::ptr::eq(*other, statement)), false);
        let Some(inline) = Inline::of(source, found) else { continue };
        let mut within = Bound::default();
        within.statements(found.body.iter(), true);
        let Some(mut free) = inline.free() else { continue };
        free.extend(within.of_itself);
        free.retain(|name| !inline.parameters.iter().any(|(parameter, _)| parameter == name));
        let plain = |name: &String| !around.inner.contains(name) && name != "loop";
        let alone = !around.outer.contains(found.name) && !around.inner.contains(found.name);
        if alone && !within.inner.contains(found.name) && free.iter().all(plain) {
            out.insert(found.name.to_owned(), (inline, free));
        }
    }
    let calls: BTreeMap<String, BTreeSet<String>> =
        out.iter().map(|(n, (_, free))| (n.clone(), free.clone())).collect();
    let plain = out.into_iter().filter(|(name, (_, free))| !free.iter().any(|n| n != name && leads(&calls, n, name)));
    plain.map(|(name, (inline, _))| (name.clone(), inline.stopping_at(&name))).collect()
}

/// Whether a macro calls another, or one that does.
fn leads(calls: &BTreeMap<String, BTreeSet<String>>, from: &str, to: &str) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(name) = next.pop() {
        if name == to {
            return true;
        }
        if seen.insert(name) {
            next.extend(calls.get(name).into_iter().flatten().map(String::as_str));
        }
    }
    false
}

/// Names that are given a value.
#[derive(Debug, Default)]
struct Bound {
    /// Outside of all blocks that have names of their own.
    outer: BTreeSet<String>,
    /// In such blocks: loops, macros, `with`.
    inner: BTreeSet<String>,
    /// Those whose new value is made of the old one.
    of_itself: BTreeSet<String>,
}

impl Bound {
    fn statements<'a, 's: 'a>(&mut self, all: impl Iterator<Item = &'a Stmt<'s>>, inner: bool) {
        all.for_each(|statement| self.statement(statement, inner));
    }

    fn statement(&mut self, statement: &Stmt<'_>, inner: bool) {
        match statement {
            Stmt::ForLoop(found) => {
                self.target(&found.target, true);
                self.statements(found.body.iter().chain(&found.else_body), true);
            }
            Stmt::IfCond(found) => self.statements(found.true_body.iter().chain(&found.false_body), inner),
            Stmt::WithBlock(found) => {
                found.assignments.iter().for_each(|(target, _)| self.target(target, true));
                self.statements(found.body.iter(), true);
            }
            Stmt::Set(found) => {
                self.target(&found.target, inner);
                let mut made_of = BTreeSet::new();
                names(&found.expr, &mut made_of);
                if let Expr::Var(var) = &found.target
                    && made_of.contains(var.id)
                {
                    self.of_itself.insert(var.id.to_owned());
                }
            }
            Stmt::SetBlock(found) => {
                self.target(&found.target, inner);
                self.statements(found.body.iter(), inner);
            }
            Stmt::Macro(found) => {
                found.args.iter().for_each(|arg| self.target(arg, true));
                self.statements(found.body.iter(), true);
                self.add(found.name, inner);
            }
            Stmt::CallBlock(found) => {
                found.macro_decl.args.iter().for_each(|arg| self.target(arg, true));
                self.statements(found.macro_decl.body.iter(), true);
            }
            Stmt::AutoEscape(found) => self.statements(found.body.iter(), true),
            Stmt::FilterBlock(found) => self.statements(found.body.iter(), true),
            _ => {}
        }
    }

    fn target(&mut self, target: &Expr<'_>, inner: bool) {
        match target {
            Expr::Var(var) => self.add(var.id, inner),
            Expr::List(list) => list.items.iter().for_each(|item| self.target(item, inner)),
            _ => {}
        }
    }

    fn add(&mut self, name: &str, inner: bool) {
        if inner { &mut self.inner } else { &mut self.outer }.insert(name.to_owned());
    }
}

/// The names in an expression.
fn names<'s>(e: &Expr<'s>, out: &mut BTreeSet<&'s str>) {
    match e {
        Expr::Var(var) => {
            out.insert(var.id);
        }
        Expr::Const(_) => {}
        Expr::Slice(s) => {
            names(&s.expr, out);
            [&s.start, &s.stop, &s.step].into_iter().flatten().for_each(|e| names(e, out));
        }
        Expr::UnaryOp(op) => names(&op.expr, out),
        Expr::BinOp(op) => [&op.left, &op.right].into_iter().for_each(|e| names(e, out)),
        Expr::Compare(c) => std::iter::once(&c.expr).chain(c.ops.iter().map(|o| &o.expr)).for_each(|e| names(e, out)),
        Expr::IfExpr(i) => {
            [Some(&i.test_expr), Some(&i.true_expr), i.false_expr.as_ref()]
                .into_iter()
                .flatten()
                .for_each(|e| names(e, out));
        }
        Expr::Filter(f) => f.expr.iter().chain(f.args.iter().map(argument)).for_each(|e| names(e, out)),
        Expr::Test(t) => std::iter::once(&t.expr).chain(t.args.iter().map(argument)).for_each(|e| names(e, out)),
        Expr::GetAttr(get) => names(&get.expr, out),
        Expr::GetItem(get) => [&get.expr, &get.subscript_expr].into_iter().for_each(|e| names(e, out)),
        Expr::Call(c) => std::iter::once(&c.expr).chain(c.args.iter().map(argument)).for_each(|e| names(e, out)),
        Expr::List(list) => list.items.iter().for_each(|e| names(e, out)),
        Expr::Map(map) => map.keys.iter().chain(&map.values).for_each(|e| names(e, out)),
    }
}

fn argument<'a, 's>(arg: &'a CallArg<'s>) -> &'a Expr<'s> {
    match arg {
        CallArg::Pos(e) | CallArg::Kwarg(_, e) | CallArg::PosSplat(e) | CallArg::KwargSplat(e) => e,
    }
}

impl Inline {
    /// Reads a macro's text. `None` if that is not as it is expected to be.
    fn of(source: &str, found: &Spanned<Macro<'_>>) -> Option<Inline> {
        static HEAD: LazyLock<Regex> = LazyLock::new(|| constant(r"^macro\s+\w+\s*\("));
        static BEGIN: LazyLock<Regex> = LazyLock::new(|| constant(r"^\s*([-+]?)%\}"));
        static END: LazyLock<Regex> = LazyLock::new(|| constant(r"\{%([-+]?)\s*endmacro$"));
        let text = source.get(found.span().start_offset as usize..found.span().end_offset as usize)?;
        let head = HEAD.find(text)?.end();
        let (parts, behind) = parts(&text[head..])?;
        let begin = BEGIN.captures(&text[head + behind..])?;
        let end = END.captures(text)?;
        let body = text.get(head + behind + begin[0].len()..text.len() - end[0].len())?;
        let first_default = found.args.len() - found.defaults.len();
        let parameter = |(at, part): (usize, &&str)| {
            let Expr::Var(var) = found.args.get(at)? else { return None };
            let default = at.checked_sub(first_default).map(|at| found.defaults[at].as_const());
            match (default, part.split_once('=')) {
                (None, None) => Some((var.id.to_owned(), None)),
                (Some(Some(_)), Some((_, default))) => Some((var.id.to_owned(), Some(default.trim().to_owned()))),
                _ => None,
            }
        };
        let parameters: Vec<_> = parts.iter().enumerate().map(parameter).collect::<Option<_>>()?;
        // A call block would give it more than its arguments.
        if parameters.len() != found.args.len() || body.contains("caller") {
            return None;
        }
        Some(Inline { parameters, body: body.to_owned(), trims: (begin[1].to_owned(), end[1].to_owned()) })
    }

    /// The same, whose calls of itself (this name) stay calls.
    fn stopping_at(mut self, name: &str) -> Inline {
        let own = constant(&format!(r"(\{{\{{[-+]?\s*)({name})(\s*\()"));
        self.body = own.replace_all(&self.body, "${1}(${2})${3}").into_owned();
        self
    }

    /// The names that it does not give a value to before it reads them. `None` if its text is no macro by itself.
    fn free(&self) -> Option<BTreeSet<String>> {
        let parameters: Vec<&str> = self.parameters.iter().map(|(name, _)| name.as_str()).collect();
        let source = format!("{{% macro m({}) %}}{}{{% endmacro %}}", parameters.join(", "), self.body);
        let env = Environment::new();
        let read = env.template_from_str(&source).ok()?;
        Some(read.undeclared_variables(false).into_iter().collect())
    }

    /// Its parameters with what a call gives them, `NAME=VALUE`. `None` if a value may come out otherwise there.
    fn given(&self, call: &Call<'_>, texts: &[&str]) -> Option<String> {
        if texts.len() != call.args.len() || texts.len() > self.parameters.len() {
            return None;
        }
        let mut out: Vec<String> = Vec::new();
        for (at, (name, default)) in self.parameters.iter().enumerate() {
            let by_name = |arg: &CallArg<'_>| matches!(arg, CallArg::Kwarg(given, _) if given == name);
            let by_place = |arg: &CallArg<'_>| matches!(arg, CallArg::Pos(_));
            let found = match call.args.iter().position(by_name) {
                Some(found) => Some((found, texts[found].split_once('=')?.1)),
                None => call.args.get(at).filter(|arg| by_place(arg)).map(|_| (at, texts[at])),
            };
            let Some((found, text)) = found else {
                out.push(format!("{name}={}", default.as_ref()?));
                continue;
            };
            let value = argument(&call.args[found]);
            let mut made_of = BTreeSet::new();
            names(value, &mut made_of);
            // The values before it are given already.
            if self.parameters[..at].iter().any(|(before, _)| made_of.contains(before.as_str())) && text.trim() != name
            {
                return None;
            }
            out.push(match default {
                Some(default) if value.as_const().is_none() => format!("{name}=({})|default({default})", text.trim()),
                _ => format!("{name}=({})", text.trim()),
            });
        }
        let every = call.args.iter().enumerate().all(|(at, arg)| match arg {
            CallArg::Pos(_) => at < self.parameters.len(),
            CallArg::Kwarg(given, _) => {
                let place = self.parameters.iter().position(|(name, _)| name == given);
                place.is_some_and(|place| !matches!(call.args.get(place), Some(CallArg::Pos(_))))
            }
            _ => false,
        });
        every.then(|| out.join(", "))
    }
}

pub(super) fn constant(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is a constant and a test runs it")
}

/// What stands between the commas of a list that goes on to a closing parenthesis, and where that ends.
fn parts(text: &str) -> Option<(Vec<&str>, usize)> {
    let mut out = Vec::new();
    let mut from = 0;
    for (at, c) in bare(text) {
        match c {
            ',' => {
                out.push(&text[from..at]);
                from = at + 1;
            }
            ')' => {
                // A comma may stand behind the last.
                out.extend(Some(&text[from..at]).filter(|last| !last.trim().is_empty()));
                return Some((out, at + 1));
            }
            _ => {}
        }
    }
    None
}

/// The characters of an expression that stand in no quotes and no brackets, up to the bracket that closes one before it.
pub(super) fn bare(text: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut depth, mut quote, mut escaped, mut over) = (0, None, false, false);
    text.char_indices().filter(move |(_, c)| {
        let opens = matches!(c, '(' | '[' | '{');
        let closes = matches!(c, ')' | ']' | '}');
        match quote {
            Some(_) if escaped => escaped = false,
            Some(open) => {
                escaped = *c == '\\';
                quote = (open != *c).then_some(open);
            }
            None if matches!(c, '\'' | '"') => quote = Some(*c),
            None if opens => depth += 1,
            None if closes && depth > 0 => depth -= 1,
            None => {
                let bare = depth == 0 && !over;
                over |= closes;
                return bare;
            }
        }
        false
    })
}

/// A template with its macros in place of calls; those that call others may be left with these.
fn replaced(source: &str, all: &[Stmt<'_>], macros: &BTreeMap<String, Inline>) -> String {
    let mut calls: Vec<(usize, usize, String)> = Vec::new();
    let mut declared = BTreeSet::new();
    let mut size = source.len();
    every(all, &mut |statement| {
        if let Stmt::Macro(found) = statement {
            declared.insert(found.name);
            return false;
        }
        if let Stmt::EmitExpr(emit) = statement
            && let Expr::Call(call) = &emit.expr
            && let Expr::Var(var) = &call.expr
            && declared.contains(var.id)
            && size <= LARGEST
        {
            let found = macros.get(var.id).and_then(|inline| block(source, emit, call, inline));
            size += found.as_ref().map_or(0, |(.., text)| text.len());
            calls.extend(found);
        }
        true
    });
    if size > LARGEST {
        return source.to_owned();
    }
    let mut out = source.to_owned();
    calls.iter().rev().for_each(|(from, end, text)| out.replace_range(*from..*end, text));
    out
}

/// What takes the place of a call: from where, to where, and the block.
fn block(
    source: &str,
    emit: &Spanned<EmitExpr<'_>>,
    call: &Call<'_>,
    inline: &Inline,
) -> Option<(usize, usize, String)> {
    static BEGIN: LazyLock<Regex> = LazyLock::new(|| constant(r"^\{\{([-+]?)\s*\w+\s*\("));
    static END: LazyLock<Regex> = LazyLock::new(|| constant(r"^\s*([-+]?)\}\}"));
    let from = emit.span().start_offset as usize;
    let begin = BEGIN.captures(source.get(from..)?)?;
    let inner = from + begin[0].len();
    let (texts, behind) = parts(&source[inner..])?;
    let end = END.captures(&source[inner + behind..])?;
    // Blocks trim white space around them that puts out would not.
    let kept = |mark: &str| if mark == "-" { "-" } else { "+" }.to_owned();
    let given = inline.given(call, &texts)?;
    let (body, (first, last)) = (&inline.body, &inline.trims);
    let text = format!("{{%{} with {given} {first}%}}{body}{{%{last} endwith {}%}}", kept(&begin[1]), kept(&end[1]));
    Some((from, inner + behind + end[0].len(), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(source: &str) -> String {
        inlined(source, WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true })
    }

    #[test]
    fn a_macro_takes_the_place_of_its_calls() {
        let tag = "{%- macro tag(name, end='') %}\n <{{ end + name }}>{{ bos }}\n{%- endmacro %}";
        for (call, expect) in [
            (
                "a {{- tag('b') }} c",
                "a {%- with name=('b'), end='' %}\n <{{ end + name }}>{{ bos }}\n{%- endwith +%} c",
            ),
            (
                "{{ tag(m[','] , end = m.name) -}}",
                "{%+ with name=(m[',']), end=(m.name)|default('') %}\n <{{ end + name }}>{{ bos }}\n{%- endwith -%}",
            ),
        ] {
            let within = "{% for m in messages %}{% if m %}TEXT{% endif %}{% endfor %}";
            let (given, expect) = (within.replace("TEXT", call), within.replace("TEXT", expect));
            assert_eq!(after(&format!("{tag}{given}")), format!("{tag}{expect}"));
        }
        let both =
            format!("{tag}{{%- macro pair(name) -%}}{{{{ tag(name) }}}}{{{{ tag(name, '/') }}}}{{%- endmacro -%}}");
        let pair = after(&format!("{both}{{{{ pair('a') }}}}"));
        assert!(pair.starts_with(&both) && !pair[both.len()..].contains("tag("), "{pair}");
        assert!(
            pair.ends_with("name=(name), end=('/') %}\n <{{ end + name }}>{{ bos }}\n{%- endwith +%}{%- endwith +%}")
        );
    }

    #[test]
    fn a_macro_that_calls_itself_takes_the_place_of_the_first_call() {
        let deep = "{%- macro deep(x) -%}{%- if x is string -%}{{ x }}{%- else -%}{%- for y in x -%}CALL{%- endfor -%}{%- endif -%}{%- endmacro -%}";
        let given = deep.replace("CALL", "{{ deep(y) }}");
        let body = deep
            .replace("CALL", "{{ (deep)(y) }}")
            .replace("macro deep(x)", "with x=(m)")
            .replace("endmacro", "endwith");
        let body = body.replace("endwith -%}", "endwith +%}").replace("{%- with", "{%+ with");
        assert_eq!(after(&format!("{given}{{{{ deep(m) }}}}")), format!("{given}{body}"));
    }

    #[test]
    fn calls_that_may_come_out_otherwise_stay() {
        let plain = "{%- macro f(a, b) -%}{{ a }}{{ b }}{%- endmacro -%}";
        let outer = "{%- macro f(a) -%}{{ a }}{{ c }}{%- endmacro -%}";
        for kept in [
            // Values that are made of what has another value in the block already; too few, too many, unknown, double.
            format!("{plain}{{{{ f(b, a) }}}}"),
            format!("{plain}{{{{ f(1) }}}}"),
            format!("{plain}{{{{ f(1, 2, 3) }}}}"),
            format!("{plain}{{{{ f(1, c=2) }}}}"),
            format!("{plain}{{{{ f(1, a=2) }}}}"),
            format!("{plain}{{{{ f(1, *more) }}}}"),
            // Not put out as they are, before the macro is declared, in another macro, no macro of this name alone.
            format!("{plain}{{{{ f(1, 2) | trim }}}}"),
            format!("{{{{ f(1, 2) }}}}{plain}"),
            format!("{plain}{{%- macro g() -%}}{{{{ f(1, 2) }}}}{{%- endmacro -%}}"),
            format!("{plain}{plain}{{{{ f(1, 2) }}}}"),
            format!("{plain}{{%- set f = namespace -%}}{{{{ f(1, 2) }}}}"),
            // A name that is not the macro's own has another value where it is called.
            format!("{outer}{{%- for c in messages -%}}{{{{ f(1) }}}}{{%- endfor -%}}"),
            format!("{outer}{{%- for m in messages -%}}{{%- set c = m -%}}{{{{ f(1) }}}}{{%- endfor -%}}"),
            "{%- macro f() -%}{%- if x -%}{%- set c = 1 -%}{%- endif -%}{{ c }}{%- endmacro -%}{%- for c in m -%}{{ f() }}{%- endfor -%}".into(),
            "{%- macro f() -%}{%- set c = c + 1 -%}{{ c }}{%- endmacro -%}{%- for c in m -%}{{ f() }}{%- endfor -%}".into(),
            "{%- macro f() -%}{{ loop.index }}{%- endmacro -%}{%- for c in m -%}{{ f() }}{%- endfor -%}".into(),
            "{%- macro f() -%}{{ caller() }}{%- endmacro -%}{{ f() }}".into(),
            "{%- macro f() -%}{{ g() }}{%- endmacro -%}{%- macro g() -%}{{ f() }}{%- endmacro -%}{{ f() }}".into(),
            "{% if %}".into(),
        ] {
            assert_eq!(after(&kept), kept);
        }
    }
}
