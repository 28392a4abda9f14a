//! The watchdog: what is said of a loop, and which tools are meant to repeat. How one is found is
//! [`crate::conversation::watch`].

use crate::conversation::watch::{Kind, Loop};

/// Whether a name fits one of these globs (`*` for any letters, `?` for one), in any case.
pub fn fits(globs: &[String], name: &str) -> bool {
    let name: Vec<char> = name.to_lowercase().chars().collect();
    globs.iter().any(|glob| fits_one(&glob.to_lowercase().chars().collect::<Vec<_>>(), &name))
}

fn fits_one(glob: &[char], name: &[char]) -> bool {
    let (mut g, mut n) = (0, 0);
    // Where the last star stood, and the first letter that it does not stand for.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match glob.get(g) {
            Some('*') => {
                star = Some((g, n));
                g += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => (g, n) = (g + 1, n + 1),
            _ => {
                let Some((at, from)) = star else { return false };
                star = Some((at, from + 1));
                (g, n) = (at + 1, from + 1);
            }
        }
    }
    glob[g..].iter().all(|c| *c == '*')
}

/// What goes round, in a few words. A tool's name is a client's word: only what is harmless anywhere is shown.
pub fn words(seen: &Loop) -> String {
    let tool: String =
        seen.tool.chars().filter(|c| c.is_ascii_alphanumeric() || "_-.:".contains(*c)).take(64).collect();
    let Loop { times, calls, distinct, .. } = seen;
    match seen.kind {
        Kind::SameCall => format!("the same call of {tool} gave the same result {times} times"),
        Kind::Cycle => format!("the same {distinct} calls gave the same results again and again, {tool} {times} times"),
        Kind::SameError => format!("the same error came {times} times in the last {calls} calls, now from {tool}"),
    }
}

/// The line that is added to the newest result, for the model to see.
pub fn line(seen: &Loop) -> String {
    format!(
        "[windowsill: {}. Calling again will bring nothing new: try something else, or say what keeps you from going on]",
        words(seen)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        let fit = |glob: &str, name: &str| fits(&[glob.to_owned()], name);
        for (glob, name) in [("*wait*", "Wait_For"), ("wait", "WAIT"), ("*", ""), ("a?c*", "abcd"), ("*a*b", "xaxxbxb")]
        {
            assert!(fit(glob, name), "{glob} {name}");
        }
        for (glob, name) in [("wait", "await"), ("?", ""), ("a*b", "abc"), ("", "x")] {
            assert!(!fit(glob, name), "{glob} {name}");
        }
    }

    #[test]
    fn names_of_tools_are_made_harmless() {
        let seen =
            Loop { kind: Kind::SameCall, times: 5, calls: 5, distinct: 1, tool: "l\u{1b}[31ms\n`ü".into(), at: 9 };
        assert_eq!(words(&seen), "the same call of l31ms gave the same result 5 times");
    }
}
