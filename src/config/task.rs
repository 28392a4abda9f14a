//! What a conversation is for: a small profile that lies over the model's, field by field.

use std::path::{Path, PathBuf};

use super::context::{CONTEXT_KEYS, ContextLayer};
use super::file::{self, Label, Section};
use super::problem::{Problem, nearest};
use super::written as read;
use super::written::Sourced;
use crate::conversation::task::Keep;

/// The word by which the first turns decide.
pub const AUTO: &str = "auto";

/// The tables of a task's file.
const SECTIONS: &[Section] = &[
    Section { path: "", keys: &["focus", "keep"], repeated: false },
    Section { path: "context", keys: CONTEXT_KEYS, repeated: false },
];

const BUILT_IN: &[(&str, &str)] = &[
    ("chat", include_str!("../../profiles/tasks/chat.toml")),
    ("debug", include_str!("../../profiles/tasks/debug.toml")),
    ("implement", include_str!("../../profiles/tasks/implement.toml")),
    ("research", include_str!("../../profiles/tasks/research.toml")),
    ("review", include_str!("../../profiles/tasks/review.toml")),
];

/// A kind of task.
#[derive(Debug, Clone)]
pub struct Task {
    /// Its name: the file's name without `.toml`.
    pub name: String,
    /// What its briefs keep above all.
    pub focus: Option<String>,
    /// What is kept longest.
    pub keep: Option<Keep>,
    /// The settings it changes.
    pub(crate) context: ContextLayer,
}

/// The built-in tasks and those in the folder `tasks` of `dir`, by name; a file replaces the built-in one of the same name.
pub(crate) fn load(dir: Option<&Path>, problems: &mut Vec<Problem>) -> Vec<Task> {
    let mut tasks: Vec<Task> = BUILT_IN
        .iter()
        .filter_map(|(name, text)| parse(name, text, &format!("profiles/tasks/{name}.toml"), problems))
        .collect();
    for path in dir.map(files).unwrap_or_default() {
        let display = path.display().to_string();
        let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        if let Ok(text) = file::read(&path, &display, problems)
            && let Some(task) = parse(name, &text, &display, problems)
        {
            tasks.retain(|other| other.name != task.name);
            tasks.push(task);
        }
    }
    tasks.sort_by(|a, b| a.name.cmp(&b.name));
    tasks
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir.join("tasks")) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    paths
}

fn parse(name: &str, text: &str, display: &str, problems: &mut Vec<Problem>) -> Option<Task> {
    let mut found = Vec::new();
    let label = Label::Profile(format!("tasks/{name}"));
    let layer = file::parse(text, display, &label, SECTIONS, &mut found).ok();
    let task = layer.map(|layer| Task {
        name: name.to_owned(),
        focus: layer.values.get("focus").and_then(|written| written.read(read::text, &mut found)).map(|f| f.value),
        keep: layer.values.get("keep").and_then(|written| written.read(keep, &mut found)).map(|k| k.value),
        context: ContextLayer::read(&layer, "context", &mut found),
    });
    let whole = found.is_empty();
    problems.append(&mut found);
    task.filter(|_| whole)
}

/// What is kept longest, as a task's file says it.
fn keep(value: &read::Value) -> Result<Keep, String> {
    let words: Vec<String> = Keep::ALL.iter().map(|keep| format!("\"{}\"", keep.as_str())).collect();
    let wanted = || format!("must be one of {}", words.join(", "));
    Keep::read(&read::any_text(value).map_err(|_| wanted())?).ok_or_else(wanted)
}

/// Checks that the task that is set exists.
pub(crate) fn check(set: Option<&Sourced<String>>, tasks: &[Task], problems: &mut Vec<Problem>) {
    let Some(set) = set.filter(|set| !set.value.is_empty() && set.value != AUTO) else { return };
    if tasks.iter().any(|task| task.name == set.value) {
        return;
    }
    let mut names: Vec<&str> = tasks.iter().map(|task| task.name.as_str()).collect();
    names.push(AUTO);
    let problem = Problem::new(&set.source, format!("`task` is \"{}\", and there is no such task", set.value));
    problems.push(problem.hint(nearest(&set.value, &names)));
}
