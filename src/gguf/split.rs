//! A model in several files: `NAME-00001-of-00003.gguf`. The first holds the metadata; the tables of tensors add up
//! (src/llama.cpp, `llama_split_path`, and src/llama-model-loader.cpp).

use std::path::{Path, PathBuf};

use super::{Error, Gguf, Options};

/// The most parts a model can be in.
const MAX_PARTS: u64 = 9_999;

/// Reads a file, and if it is a part of a split model, all others beside it.
pub(super) fn open(path: &Path, options: Options<'_>) -> Result<Gguf, Error> {
    let first = one(path, options)?;
    let count = first.number("split.count").unwrap_or(0);
    if count <= 1 {
        return Ok(first);
    }
    let part = |number, what: String| Error::Part { number, count, path: path.to_owned(), what };
    let number = first.number("split.no").unwrap_or(0).saturating_add(1);
    if count > MAX_PARTS || number > count {
        return Err(part(number, format!("a model in more than {MAX_PARTS} parts, or a part beyond the last")));
    }
    let Some(prefix) = prefix(path, number, count) else {
        let what =
            format!("its name should end in -{number:05}-of-{count:05}.gguf, or the other parts cannot be found");
        return Err(part(number, what));
    };
    let mut parts = Vec::new();
    for number in 1..=count {
        parts.push(read_part(path, &prefix, number, count, options)?);
    }
    let expected = first.number("split.tensors.count");
    let whole = join(parts);
    match expected {
        Some(expected) if expected != whole.tensors.len() as u64 => {
            Err(part(number, format!("the parts hold {} tensors, {expected} were expected", whole.tensors.len())))
        }
        _ => Ok(whole),
    }
}

fn one(path: &Path, options: Options<'_>) -> Result<Gguf, Error> {
    let file = |source| Error::File { path: path.to_owned(), source };
    let opened = crate::files::open(path).map_err(file)?;
    Gguf::read_with(opened, options)
}

/// The path up to `-00001-of-00003.gguf`.
fn prefix(path: &Path, number: u64, count: u64) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    Some(name.strip_suffix(&format!("-{number:05}-of-{count:05}.gguf"))?.to_owned())
}

fn read_part(beside: &Path, prefix: &str, number: u64, count: u64, options: Options<'_>) -> Result<Gguf, Error> {
    let path: PathBuf = beside.with_file_name(format!("{prefix}-{number:05}-of-{count:05}.gguf"));
    let wrong = |what: String| Error::Part { number, count, path: path.clone(), what };
    let part = one(&path, options).map_err(|error| match error {
        Error::File { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            wrong("it is not there".to_owned())
        }
        error => wrong(error.to_string()),
    })?;
    let said = (part.number("split.no").unwrap_or(0).saturating_add(1), part.number("split.count").unwrap_or(0));
    if said != (number, count) {
        return Err(wrong(format!("inside, it is part {} of {}", said.0, said.1)));
    }
    Ok(part)
}

fn join(parts: Vec<Gguf>) -> Gguf {
    let count = parts.len() as u64;
    let mut parts = parts.into_iter();
    let mut whole = parts.next().expect("a split model has at least two parts");
    whole.parts = count;
    for (index, part) in (1..).zip(parts) {
        whole.file_bytes = whole.file_bytes.saturating_add(part.file_bytes);
        whole.tensors.extend(part.tensors.into_iter().map(|mut tensor| {
            tensor.part = index;
            tensor
        }));
    }
    whole
}
