//! Paths as a model writes them: below one root, by plain names.

/// How the root is called.
pub const ROOT: &str = "/memories";

/// Names from the root to a file at most.
const DEEPEST: usize = 8;

/// Bytes of a name at most: what file systems take.
const LONGEST: usize = 200;

/// A place below the root, or the root itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    written: String,
    names: Vec<String>,
}

impl Place {
    /// Reads a path.
    ///
    /// # Errors
    /// In words for the model, where it is not below the root, or holds a name that leads elsewhere or is none on some system.
    pub fn read(path: &str) -> Result<Place, String> {
        let written = path.to_owned();
        let below = path.strip_prefix(ROOT).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let Some(below) = below else {
            return Err(format!("Path must start with {ROOT}, got: {}", short(path)));
        };
        let names: Vec<String> = below.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        if names.iter().any(|name| name == "." || name == "..") {
            return Err(format!("Path {} would escape {ROOT} directory", short(path)));
        }
        if names.iter().any(|name| !is_plain(name)) {
            return Err(format!(
                "Path {} holds a name that is not taken: a name has 1 to {LONGEST} bytes, none of them a control character or one \
                 of \\ : * ? \" < > |, does not begin with a dot, and does not end with a dot or a space",
                short(path)
            ));
        }
        if names.len() > DEEPEST {
            return Err(format!("Path {} is deeper than {DEEPEST} names", short(path)));
        }
        Ok(Place { written, names })
    }

    /// The path as the model wrote it, for answers.
    pub fn written(&self) -> &str {
        &self.written
    }

    /// The names from the root on; none for the root itself.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether another place is this one, or below it.
    pub fn holds(&self, other: &Place) -> bool {
        other.names.starts_with(&self.names)
    }
}

/// A name that is the same file on every system, and that `view` shows: a leading dot hides a name.
fn is_plain(name: &str) -> bool {
    let odd = |c: char| c.is_control() || matches!(c, '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
    // These are devices on Windows, whatever follows the dot.
    let stem = name.split('.').next().unwrap_or("").to_ascii_lowercase();
    let device = matches!(stem.as_str(), "con" | "prn" | "aux" | "nul")
        || (stem.len() == 4
            && (stem.starts_with("com") || stem.starts_with("lpt"))
            && stem.ends_with(|c: char| c.is_ascii_digit()));
    // What windowsill itself writes to before it takes the place of a file.
    let unfinished = name.ends_with(".windowsill-new");
    !device
        && !unfinished
        && name.len() <= LONGEST
        && !name.starts_with('.')
        && !name.ends_with(['.', ' '])
        && !name.contains(odd)
}

fn short(path: &str) -> String {
    path.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn places_are_below_the_root() {
        for (path, names) in [
            ("/memories", vec![]),
            ("/memories/", vec![]),
            ("/memories/a.md", vec!["a.md"]),
            ("/memories//a/b c", vec!["a", "b c"]),
            ("/memories/日本/ü.txt", vec!["日本", "ü.txt"]),
            ("/memories/console.md", vec!["console.md"]),
        ] {
            assert_eq!(Place::read(path).unwrap().names(), names, "{path}");
        }
        for path in [
            "",
            "/",
            "memories/a",
            "/memoriesx",
            "/etc/passwd",
            "/Memories/a",
            "/memories/../etc",
            "/memories/a/../../b",
            "/memories/.",
            "/memories/.ssh",
            "/memories/a\\..\\b",
            "/memories/C:x",
            "/memories/nul",
            "/memories/COM1.txt",
            "/memories/a\0b",
            "/memories/a\nb",
            "/memories/a.",
            "/memories/a/b/c/d/e/f/g/h/i",
        ] {
            assert!(Place::read(path).is_err(), "{path}");
        }
        assert!(Place::read(&format!("/memories/{}", "x".repeat(201))).is_err());
    }

    proptest! {
        #[test]
        fn no_path_leads_out(path in "(/memories)?(/|\\.|\\.\\.|\\\\|a|~|%2e|:|\u{202e}|\\PC){0,12}") {
            if let Ok(place) = Place::read(&path) {
                let root = std::path::Path::new("/root/of/it");
                let joined = place.names().iter().fold(root.to_owned(), |at, name| at.join(name));
                prop_assert!(joined.starts_with(root));
                let plain = |c: std::path::Component<'_>| matches!(c, std::path::Component::Normal(_) | std::path::Component::RootDir);
                prop_assert!(joined.components().all(plain));
                prop_assert_eq!(joined.components().count(), root.components().count() + place.names().len());
            }
        }
    }
}
