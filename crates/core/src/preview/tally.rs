//! What many errors have in common: their codes, and the files that they are in.

use std::collections::HashMap;

use super::clean::shorten;
use super::fit::Draft;
use super::log::{FIRST, MANY_FILES, rank};
use super::paths::{by_folder, common_folder, grouped};
use super::signal::{Grade, Graded};

/// How often each code of an error came (`TS2307`, `E0599`), with one of its messages.
pub(super) fn codes(draft: &mut Draft, graded: &Graded<'_>) {
    let mut codes: Vec<(&str, usize, &str)> = Vec::new();
    for (line, _) in graded.lines.iter().zip(&graded.grades).filter(|(_, g)| **g == Grade::Error) {
        let Some((code, said)) = code(line) else { continue };
        if let Some((_, times, _)) = codes.iter_mut().find(|(known, ..)| *known == code) {
            *times += 1;
        } else if codes.len() < 100 {
            codes.push((code, 1, said));
        }
    }
    codes.sort_by_key(|(code, times, _)| (std::cmp::Reverse(*times), *code));
    if codes.len() > 1 {
        for (code, times, said) in codes.into_iter().take(FIRST - 2) {
            draft.top(rank::FILES + 2, format!("{code}: {} (×{times})", shorten(said, 70)));
        }
    }
}

/// The code of an error and what is said behind it: `error TS2307: x`, `error[E0599]: x`, `fatal error C1083: x`.
fn code(line: &str) -> Option<(&str, &str)> {
    let rest = &line[line.find("error")? + 5..];
    let (code, said) = rest.trim_start_matches([' ', '[']).split_once(':')?;
    let code = code.trim_end_matches(']');
    let letters = code.bytes().take_while(u8::is_ascii_uppercase).count();
    let digits = code.bytes().skip(letters).take_while(u8::is_ascii_digit).count();
    ((1..=8).contains(&letters) && digits > 1 && letters + digits == code.len()).then_some((code, said.trim()))
}

/// The files that errors were found in.
pub(super) fn files(draft: &mut Draft, files: HashMap<String, usize>, rank: u16) {
    let mut files: Vec<(String, usize)> = files.into_iter().collect();
    if files.len() < 2 {
        return;
    }
    files.sort();
    let above = common_folder(files.iter().map(|(path, _)| path.as_str())).to_owned();
    if files.len() <= 4 || above.len() < 3 {
        return grouped(&files).into_iter().for_each(|group| draft.top(rank, format!("errors in {group}")));
    }
    // What they have in common is said once.
    let below: Vec<(String, usize)> = files.iter().map(|(path, n)| (path[above.len()..].to_owned(), *n)).collect();
    if files.len() > MANY_FILES {
        let folders: Vec<(String, usize)> = by_folder(&below).into_iter().collect();
        draft.top(rank + 2, format!("errors by folder, in {above}: {}", grouped(&folders).join(", ")));
    }
    draft.top(rank + 1, format!("errors by file, in {above}"));
    grouped(&below).into_iter().for_each(|group| draft.top(rank, group));
}
