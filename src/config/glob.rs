//! Globs: for the names of the models that a profile fits, and of the tools whose calls are meant to repeat.

use wildmatch::WildMatch;

/// A name with `*` (any text) and `?` (any one letter), matched without regard to case.
#[derive(Debug, Clone, PartialEq)]
pub struct Glob {
    written: String,
    pattern: WildMatch,
}

impl Glob {
    /// Every text is a glob.
    pub fn new(written: &str) -> Glob {
        Glob { written: written.to_owned(), pattern: WildMatch::new_case_insensitive(written) }
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.written
    }

    /// How many of its letters are not wild: how specific it is.
    pub fn literal(&self) -> usize {
        self.written.chars().filter(|c| !matches!(c, '*' | '?')).count()
    }

    /// Whether it matches the whole name.
    pub fn fits(&self, name: &str) -> bool {
        self.pattern.matches(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (glob, name) in [
            ("*wait*", "Wait_For"),
            ("wait", "WAIT"),
            ("*", ""),
            ("", ""),
            ("a?c*", "abcd"),
            ("?", "Ü"),
            ("a.c", "a.c"),
            ("*a*b", "xaxxbxb"),
        ] {
            assert!(Glob::new(glob).fits(name), "{glob} {name}");
        }
        for (glob, name) in [("wait", "await"), ("?", ""), ("a*b", "abc"), ("", "x"), ("a.c", "abc")] {
            assert!(!Glob::new(glob).fits(name), "{glob} {name}");
        }
        assert_eq!(Glob::new("Qwen?.5*").literal(), 6);
    }
}
