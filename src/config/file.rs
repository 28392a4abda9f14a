//! A TOML file as written: every key with its place, unknown keys reported with the nearest right one.
//!
//! It knows names and places only. What a value means, and which layer wins, is decided elsewhere.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Problem, near, nearest, quoted};
use super::written::{Value, Written, is_secret, mask};

/// One table that a file may have, and its keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Section {
    /// Dotted name; empty for the top of the file.
    pub(crate) path: &'static str,
    /// The keys that may stand in it.
    pub(crate) keys: &'static [&'static str],
    /// Whether it is written `[[…]]` and may come more than once.
    pub(crate) repeated: bool,
}

/// Where values of a file are said to come from.
#[derive(Debug, Clone)]
pub(crate) enum Label {
    /// The embedded base layer.
    Default,
    /// `FILE:LINE`.
    File,
    /// `profile NAME`, and the table's name for sizes.
    Profile(String),
}

/// The values of one file, or of the environment, or of the command line.
#[derive(Debug, Clone, Default)]
pub(crate) struct Layer {
    /// Values by dotted key, such as `context.clear_at`.
    pub(crate) values: BTreeMap<String, Written>,
    /// The tables of `[[upstream]]`, in order, each with its place and values by key.
    pub(crate) repeated: Vec<(String, BTreeMap<String, Written>)>,
    /// The tables of `[[pin]]`, in the same way.
    pub(crate) pins: Vec<(String, BTreeMap<String, Written>)>,
    /// The tables of `[[key]]`, in the same way.
    pub(crate) keys: Vec<(String, BTreeMap<String, Written>)>,
    /// The tables `[model.GLOB]`, in order.
    pub(crate) models: Vec<ModelTable>,
}

/// One table `[model.GLOB]`: its keys are the program's, what stands below them is for servers.
#[derive(Debug, Clone)]
pub(crate) struct ModelTable {
    /// The glob of model names.
    pub(crate) glob: String,
    /// Where it stands.
    pub(crate) place: String,
    /// Where its values are said to come from.
    pub(crate) source: String,
    /// Its keys, each with its place and its value as JSON; `None` for what JSON cannot say.
    pub(crate) keys: Vec<(String, String, Option<serde_json::Value>)>,
}

/// The name of the table that holds those.
pub(crate) const MODEL: &str = "model";

/// A file that could not be read as TOML says nothing about its keys.
#[derive(Debug)]
pub(crate) struct Unreadable;

/// Reads the text of a file: its values, with every unknown or misplaced key added to `problems`.
pub(crate) fn parse(
    text: &str,
    display: &str,
    label: &Label,
    sections: &[Section],
    problems: &mut Vec<Problem>,
) -> Result<Layer, Unreadable> {
    let source = SourceText { text, display };
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        problems.extend(syntax_problems(&source, &errors));
        return Err(Unreadable);
    }
    let mut walk = Walk { source, label, sections, problems, layer: Layer::default() };
    walk.table("", table.get_ref(), None);
    Ok(walk.layer)
}

/// Reads a file from disk; a file that cannot be read is a problem.
pub(crate) fn read(path: &Path, display: &str, problems: &mut Vec<Problem>) -> Result<String, Unreadable> {
    std::fs::read_to_string(path).map_err(|error| {
        problems.push(Problem::new(display, format!("cannot be read: {error}")));
        Unreadable
    })
}

/// A file's text and the name that problems call it by.
struct SourceText<'a> {
    text: &'a str,
    display: &'a str,
}

impl SourceText<'_> {
    /// Line and column, both from 1; the column counts characters.
    fn line_column(&self, offset: usize) -> (usize, usize) {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &self.text[..offset];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    fn place(&self, offset: usize) -> String {
        let (line, column) = self.line_column(offset);
        format!("{}:{line}:{column}", self.display)
    }

    /// The value as it stands in the file, first line only and not longer than a message bears.
    fn shown(&self, range: std::ops::Range<usize>) -> String {
        /// Characters of a value that a message repeats.
        const MOST: usize = 40;
        let line = mask(self.text.get(range).unwrap_or_default().lines().next().unwrap_or_default());
        if line.chars().count() <= MOST {
            return line;
        }
        line.chars().take(MOST).chain(['…']).collect()
    }
}

/// One problem for each line that is not TOML: after the first on a line the parser mostly guesses.
fn syntax_problems(source: &SourceText, errors: &[toml::de::Error]) -> Vec<Problem> {
    let mut seen = Vec::new();
    let mut problems = Vec::new();
    for error in errors {
        let offset = error.span().map_or(0, |span| span.start);
        let (line, column) = source.line_column(offset);
        if seen.contains(&line) {
            continue;
        }
        seen.push(line);
        let message = format!("not TOML: {}", error.message().replace('\n', ", "));
        let mut problem = Problem::new(source.place(offset), message);
        problem.excerpt = source.text.lines().nth(line - 1).and_then(|content| excerpt(content, line, column));
        problems.push(problem);
    }
    problems
}

/// The line and a caret below the column; nothing for a line that may hold a secret.
fn excerpt(content: &str, line: usize, column: usize) -> Option<String> {
    let content_lower = content.to_ascii_lowercase();
    if content_lower.contains("api_key") || content_lower.contains("postgres") {
        return None;
    }
    let gutter = " ".repeat(line.to_string().len());
    let until: String = content.chars().take(column - 1).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
    Some(format!("{gutter} |\n{line} | {content}\n{gutter} | {until}^"))
}

/// The walk through a parsed file.
struct Walk<'a> {
    source: SourceText<'a>,
    label: &'a Label,
    sections: &'a [Section],
    problems: &'a mut Vec<Problem>,
    layer: Layer,
}

impl Walk<'_> {
    /// Takes in one table; `into` collects the values of a repeated one.
    fn table(&mut self, path: &str, table: &DeTable, mut into: Option<&mut BTreeMap<String, Written>>) {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let keys = self.sections.iter().find(|section| section.path == path).map_or(&[][..], |section| section.keys);
        for (key, value) in entries {
            let name = key.get_ref().as_ref();
            let dotted = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            if keys.contains(&name) {
                let written = self.written(path, name, value);
                match &mut into {
                    Some(values) => values.insert(name.to_owned(), written),
                    None => self.layer.values.insert(dotted, written),
                };
            } else if dotted == MODEL && self.sections.iter().any(|section| section.path == MODEL) {
                self.models(key.span().start, value);
            } else if let Some(section) = self.sections.iter().find(|section| section.path == dotted) {
                self.section(*section, &dotted, key.span().start, value);
            } else if self.sections.iter().any(|section| section.path.starts_with(&format!("{dotted}."))) {
                self.section(Section { path: "", keys: &[], repeated: false }, &dotted, key.span().start, value);
            } else {
                self.unknown(path, name, keys, key.span().start, value.get_ref());
            }
        }
    }

    /// Takes in a value that must be a table, or tables.
    fn section(&mut self, section: Section, dotted: &str, offset: usize, value: &Spanned<DeValue>) {
        match (section.repeated, value.get_ref()) {
            (false, DeValue::Table(table)) => self.table(dotted, table, None),
            (true, DeValue::Array(tables)) if tables.iter().all(|item| item.get_ref().is_table()) => {
                for item in tables.iter() {
                    if let DeValue::Table(table) = item.get_ref() {
                        let mut values = BTreeMap::new();
                        let start = table.keys().map(|key| key.span().start).min().unwrap_or(item.span().start);
                        self.table(dotted, table, Some(&mut values));
                        let all = match dotted {
                            "pin" => &mut self.layer.pins,
                            "key" => &mut self.layer.keys,
                            _ => &mut self.layer.repeated,
                        };
                        all.push((self.source.place(start), values));
                    }
                }
            }
            (repeated, _) => {
                let (wanted, heading) = if repeated {
                    ("a list of tables", format!("[[{dotted}]]"))
                } else {
                    ("a table", format!("[{dotted}]"))
                };
                let problem = Problem::new(self.source.place(offset), format!("`{dotted}` must be {wanted}"));
                self.problems.push(problem.hint(format!("write {heading} on a line of its own, its keys below")));
            }
        }
    }

    /// Takes in the tables `[model.GLOB]`. What stands in `[model]` itself is for every model.
    fn models(&mut self, offset: usize, value: &Spanned<DeValue>) {
        let DeValue::Table(all) = value.get_ref() else {
            let problem = Problem::new(self.source.place(offset), format!("`{MODEL}` must be a table"));
            self.problems.push(problem.hint("write [model.\"*\"] on a line of its own, its keys below"));
            return;
        };
        let mut own = Vec::new();
        let mut entries: Vec<_> = all.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let (name, start) = (key.get_ref().as_ref(), key.span().start);
            match value.get_ref() {
                _ if matches!(name, "set" | "strip") => own.push((key, value)),
                DeValue::Table(table) => {
                    let mut keys: Vec<_> = table.iter().collect();
                    keys.sort_by_key(|(key, _)| key.span().start);
                    let table = self.model(name, start, &keys);
                    self.layer.models.push(table);
                }
                _ => {
                    let problem = Problem::new(self.source.place(start), format!("`{MODEL}.{name}` must be a table"));
                    self.problems.push(problem.hint("write [model.\"GLOB\"] with `set`, `strip` or both"));
                }
            }
        }
        if !own.is_empty() {
            let table = self.model("*", offset, &own);
            self.layer.models.push(table);
        }
    }

    fn model(&self, glob: &str, offset: usize, keys: &[(&Spanned<Cow<'_, str>>, &Spanned<DeValue>)]) -> ModelTable {
        let source = match self.label {
            Label::Profile(profile) => format!("profile {profile}"),
            Label::Default => "default".to_owned(),
            Label::File => self.source.display.to_owned(),
        };
        let read = |(key, value): &(&Spanned<Cow<'_, str>>, &Spanned<DeValue>)| {
            (key.get_ref().to_string(), self.source.place(value.span().start), json_of(value.get_ref()))
        };
        let place = self.source.place(offset);
        ModelTable { glob: glob.to_owned(), place, source, keys: keys.iter().map(read).collect() }
    }

    fn written(&self, section: &str, name: &str, value: &Spanned<DeValue>) -> Written {
        let span = value.span();
        let (line, _) = self.source.line_column(span.start);
        let source = match self.label {
            Label::Default if section.starts_with("size.") => format!("default [{section}]"),
            Label::Default => "default".to_owned(),
            Label::File => format!("{}:{line}", self.source.display),
            Label::Profile(profile) if section.starts_with("size.") => format!("profile {profile} [{section}]"),
            Label::Profile(profile) => format!("profile {profile}"),
        };
        Written {
            value: value_of(value.get_ref()),
            shown: if is_secret(name) { String::new() } else { self.source.shown(span.clone()) },
            name: name.to_owned(),
            place: self.source.place(span.start),
            source,
        }
    }

    /// Reports a name that nothing knows, with the nearest right one.
    fn unknown(&mut self, path: &str, name: &str, keys: &[&str], offset: usize, value: &DeValue) {
        let is_list = matches!(value, DeValue::Array(items)
            if items.iter().next().is_some() && items.iter().all(|item| item.get_ref().is_table()));
        let is_table = is_list || value.is_table();
        let below = if path.is_empty() { String::new() } else { format!("{path}.") };
        let mut children: Vec<&str> = Vec::new();
        for section in self.sections.iter().filter(|section| !section.path.is_empty()) {
            let child = section.path.strip_prefix(&below).and_then(|rest| rest.split('.').next());
            children.extend(child.filter(|child| !children.contains(child)));
        }
        let has_it = |section: &&Section| section.keys.contains(&name) && section.path != path;
        let near_home = self.sections.iter().filter(|section| section.path.starts_with(&below)).find(has_it);
        let home = near_home.or_else(|| self.sections.iter().find(has_it)).map(|section| {
            match (section.path, section.repeated) {
                ("", _) => "at the top of the file, above the first table".to_owned(),
                (path, true) => format!("in [[{path}]]"),
                (path, false) => format!("in [{path}]"),
            }
        });
        let hint = match home {
            Some(home) if !is_table => format!("`{name}` stands {home}"),
            _ if is_table => match near(name, &children) {
                Some(child) => format!("did you mean {}?", self.heading(&join(path, child))),
                None => {
                    let tables: Vec<_> = children.iter().map(|child| self.heading(&join(path, child))).collect();
                    format!("tables here: {}", tables.join(", "))
                }
            },
            _ if keys.is_empty() => format!("keys here stand in tables: {}", quoted(&children)),
            _ => nearest(name, keys),
        };
        let what = match (is_table, path) {
            (true, _) if is_list => format!("unknown tables [[{}]]", join(path, name)),
            (true, _) => format!("unknown table [{}]", join(path, name)),
            (false, "") => format!("unknown key `{name}`"),
            (false, path) if self.sections.iter().any(|section| section.path == path && section.repeated) => {
                format!("unknown key `{name}` in [[{path}]]")
            }
            (false, path) => format!("unknown key `{name}` in [{path}]"),
        };
        self.problems.push(Problem::new(self.source.place(offset), what).hint(hint));
    }

    /// The line that a table, or one of several, begins with.
    fn heading(&self, path: &str) -> String {
        let repeated = self.sections.iter().any(|section| section.path == path && section.repeated);
        if repeated { format!("[[{path}]]") } else { format!("[{path}]") }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// A value as JSON; `None` for dates, and numbers that JSON does not have.
fn json_of(value: &DeValue) -> Option<serde_json::Value> {
    Some(match value {
        DeValue::Array(items) => items.iter().map(|item| json_of(item.get_ref())).collect::<Option<Vec<_>>>()?.into(),
        DeValue::Table(table) => {
            let field = |(key, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue>)| {
                Some((key.get_ref().to_string(), json_of(value.get_ref())?))
            };
            table.iter().map(field).collect::<Option<serde_json::Map<_, _>>>()?.into()
        }
        scalar => match value_of(scalar) {
            Value::Text(text) => text.into(),
            Value::Bool(yes) => yes.into(),
            Value::Whole(n) => n.into(),
            Value::Real(x) => serde_json::Number::from_f64(x)?.into(),
            _ => return None,
        },
    })
}

fn value_of(value: &DeValue) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Boolean(yes) => Value::Bool(*yes),
        DeValue::Integer(n) => {
            i64::from_str_radix(&n.as_str().replace('_', ""), n.radix()).map_or(Value::Other, Value::Whole)
        }
        DeValue::Float(x) => x.as_str().replace('_', "").parse().map_or(Value::Other, Value::Real),
        DeValue::Array(items) => items
            .iter()
            .map(|item| item.get_ref().as_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>()
            .map_or(Value::Other, Value::Names),
        DeValue::Datetime(_) | DeValue::Table(_) => Value::Other,
    }
}
