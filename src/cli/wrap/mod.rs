//! `windowsill wrap` and `unwrap`: a client's own config is pointed at windowsill, and put back as it was.

mod in_json;
mod in_toml;
mod kept;
mod patch;
mod setting;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;
use similar::algorithms::{Capture, Compact, Replace, myers};
use windowsill::config::{Config, Environment};
use windowsill::plain;

use super::clients::{Client, Places, Written, find, models};
use crate::{Failure, note, out, runtime};
use kept::{File, Kept};

#[derive(Args)]
pub(crate) struct Wrap {
    /// The client, as for `launch`.
    client: String,
    /// The model, as `GET /v1/models` lists it. Default: the first one.
    #[arg(long, value_name = "M")]
    model: Option<String>,
    /// Show what would be written, and write nothing.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
pub(crate) struct Unwrap {
    /// The client, as for `wrap`.
    client: String,
}

/// A file of the client's, and what it is to hold.
struct New {
    file: File,
    text: String,
    /// The key is in it.
    secret: bool,
}

/// Points the client's config at windowsill.
pub(crate) fn wrap(config: &Config, of: &Wrap) -> Result<ExitCode, Failure> {
    let client = find(&of.client)?;
    let environment = Environment::of_process();
    let kept = Kept::of(&environment, client.name)?;
    if kept.exists() {
        return Err(Failure::Bad(format!(
            "{} is wrapped already\n  hint: `windowsill unwrap {}` puts its config back; then wrap it again",
            client.name, client.name
        )));
    }
    let runtime = runtime()?;
    let listed = match models(&runtime, config) {
        Ok(listed) => Some(listed),
        // With the model named, a config can be written that will be right once windowsill runs.
        Err(Failure::Bad(why)) if of.model.is_some() => {
            note(&why.replace("\n  hint:", ";"));
            None
        }
        Err(failure) => return Err(failure),
    };
    let places = Places::of(config, of.model.as_deref(), listed)?;
    let hidden =
        Places { key: if places.key == "none" { "none".into() } else { "(the key)".into() }, ..places.clone() };
    let mut all = Vec::new();
    for written in client.configs {
        let file = File::read(written.path(&environment)?).map_err(|why| left_alone(client, why))?;
        let text = text_of(client, written, &file, &places)?;
        let shown = text_of(client, written, &file, &hidden)?;
        out(&diff(&file.path, file.text().unwrap_or(""), &shown))?;
        all.push(New { secret: text != shown, file, text });
    }
    if of.dry_run {
        note("nothing was written");
        return Ok(ExitCode::SUCCESS);
    }
    write(client, &kept, &all)?;
    for new in all.iter().filter(|new| new.secret && new.file.is_open_to_others()) {
        note(&format!("{} holds the key now: you alone may read it, until it is unwrapped", new.file.path.display()));
    }
    note(&format!("{} goes through {} with the model {}", client.name, places.root, plain::line(&places.model)));
    note(&format!("`windowsill unwrap {}` puts its config back as it was", client.name));
    if !client.then.is_empty() {
        note(client.then);
    }
    Ok(ExitCode::SUCCESS)
}

/// Keeps the originals, then writes the new files. What fails half-way is undone.
fn write(client: &Client, kept: &Kept, all: &[New]) -> Result<(), Failure> {
    let files: Vec<(&File, &[u8])> = all.iter().map(|new| (&new.file, new.text.as_bytes())).collect();
    kept.keep(&files)?;
    for new in all {
        if let Err(e) = new.file.write(new.text.as_bytes(), new.secret) {
            let undone = kept.restore();
            let why = format!("{} cannot be written: {e}", new.file.path.display());
            return Err(match undone {
                Ok(_) => left_alone(client, why),
                Err(also) => Failure::Bad(format!("{why}; and it could not be undone: {also}")),
            });
        }
    }
    Ok(())
}

/// What a file is to hold.
fn text_of(client: &Client, written: &Written, file: &File, places: &Places) -> Result<String, Failure> {
    let there = file.text();
    if written.made_by_client && there.is_none() {
        let path = file.path.display();
        let hint = format!("start {} once, so that it makes the file, or use `windowsill launch`", client.program);
        return Err(Failure::Bad(format!("{} has no {path} yet\n  hint: {hint}", client.name)));
    }
    let settings: Value = serde_json::from_str(&places.fill(written.settings)).unwrap_or_default();
    let settings = settings.as_object().cloned().unwrap_or_default();
    patch::patched(written.format, there.unwrap_or(""), &settings)
        .map_err(|why| left_alone(client, format!("{}: {why}", file.path.display())))
}

fn left_alone(client: &Client, why: String) -> Failure {
    let hint = format!("`windowsill launch {}` needs no config", client.name);
    Failure::Bad(format!("{why}\n  nothing was changed\n  hint: {hint}"))
}

/// A unified diff with two lines around each change. Made of the one algorithm that is in the program already.
fn diff(path: &Path, old: &str, new: &str) -> String {
    let name = path.display();
    let (old, new): (Vec<&str>, Vec<&str>) = (old.split_inclusive('\n').collect(), new.split_inclusive('\n').collect());
    let mut hook = Compact::new(Replace::new(Capture::new()), &old[..], &new[..]);
    let Ok(()) = myers::diff(&mut hook, &old[..], 0..old.len(), &new[..], 0..new.len());
    let mut out = format!("--- {name}\n+++ {name}\n");
    for group in similar::group_diff_ops(hook.into_inner().into_inner().into_ops(), 2) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let old_lines = lines(first.old_range().start, last.old_range().end);
        out += &format!("@@ -{old_lines} +{} @@\n", lines(first.new_range().start, last.new_range().end));
        for (tag, line) in group
            .iter()
            .flat_map(|op| op.iter_slices(&old, &new))
            .flat_map(|(tag, of)| of.iter().map(move |l| (tag, l)))
        {
            let end = if line.ends_with('\n') { "" } else { "\n\\ No newline at end of file\n" };
            out += &format!("{tag}{line}{end}");
        }
    }
    out
}

/// Lines `from..to` as a hunk names them: counted from 1, and how many, unless it is one.
fn lines(from: usize, to: usize) -> String {
    match to - from {
        0 => format!("{from},0"),
        1 => (from + 1).to_string(),
        many => format!("{},{many}", from + 1),
    }
}

/// Puts the client's config back.
pub(crate) fn unwrap(of: &Unwrap) -> Result<ExitCode, Failure> {
    let client = find(&of.client)?;
    let kept = Kept::of(&Environment::of_process(), client.name)?;
    if !kept.exists() {
        kept.sweep();
        note(&format!("{} is not wrapped: there is nothing to put back", client.name));
        return Ok(ExitCode::SUCCESS);
    }
    let restored = kept.restore().map_err(Failure::Bad)?;
    for file in restored {
        let path = file.path.display();
        out(&if file.existed { format!("{path} is as it was\n") } else { format!("{path} is gone, as it was\n") })?;
        if let Some(aside) = file.changed {
            note(&format!("it had been changed since; what it held is in {}", aside.display()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One file that is as it was.
struct Restored {
    path: PathBuf,
    existed: bool,
    /// Where what it held was put, if somebody else had changed it.
    changed: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_reads_as_that_of_diff() {
        let old = "a\nb\nc\nd\ne\nf\ng\nh\ni";
        let new = "a\nb\nc\nD\ne\nf\ng\nh\ni\nj\n";
        let expect = "--- c.toml\n+++ c.toml\n@@ -2,8 +2,9 @@\n b\n c\n-d\n+D\n e\n f\n g\n h\n-i\n\\ No newline at end of file\n+i\n+j\n";
        assert_eq!(diff(Path::new("c.toml"), old, new), expect);
        assert_eq!(diff(Path::new("c"), "", "x = 1\n"), "--- c\n+++ c\n@@ -0,0 +1 @@\n+x = 1\n");
        assert_eq!(diff(Path::new("c"), "x\n", "x\n"), "--- c\n+++ c\n");
    }
}
