//! `[[key]]`: who may come in, which record each of them reads, and how much each may ask for.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::file::{self, Label, Layer};
use super::problem::Problem;
use super::written::{self as read, Value, Written};
use super::{SECTIONS, display};

/// The keys of `[[key]]`.
pub(crate) const KEYS: &[&str] = &["name", "hash", "scope", "admin", "tokens_per_minute", "requests_at_once"];

/// The scope whose record stands in `data_dir` itself: the one that was there before there were keys.
pub const DEFAULT_SCOPE: &str = "default";

/// How a hash in the config begins: by the function that made it.
const FUNCTION: &str = "blake3:";

/// Longest name of a key or a scope (characters). A scope's name is that of a folder.
const LONGEST: usize = 64;

/// The hash of a token. A token is 256 random bits, so a fast function is the right one: nobody guesses its input.
#[derive(Clone, Copy)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// The hash of a token.
    pub fn of(token: &str) -> TokenHash {
        TokenHash(*blake3::hash(token.as_bytes()).as_bytes())
    }
}

impl PartialEq for TokenHash {
    /// In a time that tells nothing of how much of the other one is right.
    fn eq(&self, other: &TokenHash) -> bool {
        blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(other.0)
    }
}

impl Eq for TokenHash {}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{FUNCTION}{}", blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(…)")
    }
}

/// One key: its token's hash, and what its holder may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyConfig {
    /// Whose it is. Two keys of one name are one holder's, as while a token is replaced.
    pub name: String,
    /// The hash of its token. The token itself is kept nowhere.
    pub hash: TokenHash,
    /// Which record it reads and writes: keys of one scope share it.
    pub scope: String,
    /// Whether it may look into every scope, and do what concerns all.
    pub admin: bool,
    /// Tokens a minute that a server may evaluate and write for it; 0 for any.
    pub tokens_per_minute: u64,
    /// Requests to models that it may have open at once; 0 for any.
    pub requests_at_once: usize,
    /// Where it stands: `config.toml:9:1`.
    pub place: String,
}

/// The keys that a config file names now. What else stands in the file is not judged.
///
/// # Errors
/// What is wrong with the file as TOML, or with its keys.
pub fn keys_in(path: &Path) -> Result<Vec<KeyConfig>, Vec<Problem>> {
    let mut problems = Vec::new();
    let shown = display(path, Path::new(""));
    let layer = file::read(path, &shown, &mut problems)
        .and_then(|text| file::parse(&text, &shown, &Label::File, SECTIONS, &mut Vec::new()));
    let Ok(layer) = layer else {
        if problems.is_empty() {
            problems.push(Problem::new(&shown, "it is no TOML"));
        }
        return Err(problems);
    };
    let keys = resolve(&layer, &mut problems);
    if problems.is_empty() { Ok(keys) } else { Err(problems) }
}

/// The keys of a file.
pub(crate) fn resolve(layer: &Layer, problems: &mut Vec<Problem>) -> Vec<KeyConfig> {
    let keys: Vec<KeyConfig> = layer.keys.iter().filter_map(|(place, table)| one(place, table, problems)).collect();
    for (at, key) in keys.iter().enumerate() {
        let earlier = &keys[..at];
        if let Some(same) = earlier.iter().find(|other| other.hash == key.hash) {
            let problem = Problem::new(&key.place, format!("its `hash` is that of the key at {}", same.place));
            problems.push(problem.hint("give each key a token of its own: windowsill key new NAME"));
        }
        let differs =
            |other: &&KeyConfig| other.name == key.name && (other.scope != key.scope || other.admin != key.admin);
        if let Some(same) = earlier.iter().find(differs) {
            let message = format!("the key `{}` stands at {} with another `scope` or `admin`", key.name, same.place);
            problems
                .push(Problem::new(&key.place, message).hint("two keys of one name are one holder's: make them alike"));
        }
    }
    keys
}

fn one(place: &str, table: &BTreeMap<String, Written>, problems: &mut Vec<Problem>) -> Option<KeyConfig> {
    let before = problems.len();
    for wanted in ["name", "hash"].into_iter().filter(|wanted| !table.contains_key(*wanted)) {
        let problem = Problem::new(place, format!("this [[key]] has no `{wanted}`"));
        problems.push(problem.hint("`windowsill key new NAME` prints a whole one"));
    }
    let key_name = table.get("name").and_then(|written| written.read(name, problems));
    let hash = table.get("hash").and_then(|written| written.read(hash, problems));
    let scope = table.get("scope").and_then(|written| written.read(name, problems));
    let admin = table.get("admin").and_then(|written| written.read(read::boolean, problems));
    let tokens = table.get("tokens_per_minute").and_then(|written| written.read(read::at_most, problems));
    let at_once = table.get("requests_at_once").and_then(|written| written.read(read::at_most, problems));
    if problems.len() > before {
        return None;
    }
    let (name, admin) = (key_name?.value, admin.is_some_and(|admin| admin.value));
    let own = if admin { DEFAULT_SCOPE } else { &name };
    Some(KeyConfig {
        scope: scope.map_or_else(|| own.to_owned(), |scope| scope.value),
        hash: hash?.value,
        admin,
        tokens_per_minute: tokens.map_or(0, |tokens| tokens.value),
        requests_at_once: at_once.map_or(0, |at_once| usize::try_from(at_once.value).unwrap_or(usize::MAX)),
        place: place.to_owned(),
        name,
    })
}

/// The name of a key or a scope. Small letters alone: there are file systems that take `A` and `a` for the same folder.
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    (1..=LONGEST).contains(&name.len()) && name.chars().all(allowed) && !name.starts_with(['-', '_'])
}

fn name(value: &Value) -> Result<String, String> {
    let wanted = || format!("must be a name of small letters, digits, `-` and `_`, at most {LONGEST} of them");
    read::text(value).ok().filter(|name| is_name(name)).ok_or_else(wanted)
}

fn hash(value: &Value) -> Result<TokenHash, String> {
    let wanted = || format!("must be \"{FUNCTION}\" and 64 hexadecimal digits\n`windowsill key new NAME` prints it");
    let text = read::text(value).map_err(|_| wanted())?;
    let digits = text.strip_prefix(FUNCTION).ok_or_else(wanted)?;
    blake3::Hash::from_hex(digits).map(|hash| TokenHash(*hash.as_bytes())).map_err(|_| wanted())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Result<Vec<KeyConfig>, String> {
        let mut problems = Vec::new();
        let layer = file::parse(text, "config.toml", &Label::File, SECTIONS, &mut problems).unwrap();
        let keys = resolve(&layer, &mut problems);
        if problems.is_empty() { Ok(keys) } else { Err(super::super::report(&problems, "")) }
    }

    #[test]
    fn a_key_has_a_scope_of_its_own_unless_it_names_one() {
        let hash = |token: &str| TokenHash::of(token);
        let text = format!(
            "[[key]]\nname = \"ann\"\nhash = \"{}\"\n[[key]]\nname = \"bob\"\nhash = \"{}\"\nscope = \"team\"\n\
             tokens_per_minute = 1000\nrequests_at_once = 2\n[[key]]\nname = \"root\"\nhash = \"{}\"\nadmin = true\n",
            hash("a"),
            hash("b"),
            hash("c")
        );
        let keys = keys(&text).unwrap();
        let told: Vec<_> = keys.iter().map(|k| (k.name.as_str(), k.scope.as_str(), k.admin)).collect();
        assert_eq!(told, [("ann", "ann", false), ("bob", "team", false), ("root", DEFAULT_SCOPE, true)]);
        assert_eq!((keys[1].tokens_per_minute, keys[1].requests_at_once), (1000, 2));
        assert!(keys[0].hash == hash("a") && keys[0].hash != hash("b"));
        assert!(!format!("{keys:?}").contains(&hash("a").to_string()));
    }

    #[test]
    fn what_is_no_key_is_said() {
        let hash = TokenHash::of("a");
        let good = format!("[[key]]\nname = \"ann\"\nhash = \"{hash}\"\n");
        for (text, said) in [
            ("[[key]]\nname = \"ann\"\n".to_owned(), "has no `hash`"),
            (format!("[[key]]\nhash = \"{hash}\"\n"), "has no `name`"),
            ("[[key]]\nname = \"ann\"\nhash = \"secret\"\n".to_owned(), "64 hexadecimal digits"),
            (format!("[[key]]\nname = \"Ann\"\nhash = \"{hash}\"\n"), "small letters"),
            (format!("[[key]]\nname = \"..\"\nhash = \"{hash}\"\n"), "small letters"),
            (format!("{good}scope = \"a/b\"\n"), "small letters"),
            (format!("{good}{good}"), "is that of the key"),
            (
                format!("{good}[[key]]\nname = \"ann\"\nhash = \"{}\"\nadmin = true\n", TokenHash::of("b")),
                "another `scope`",
            ),
        ] {
            let told = keys(&text).unwrap_err();
            assert!(told.contains(said), "{text}: {told}");
            assert!(!told.contains("secret"), "{told}");
        }
        let again = format!("{good}[[key]]\nname = \"ann\"\nhash = \"{}\"\n", TokenHash::of("b"));
        assert_eq!(keys(&again).unwrap().len(), 2, "a token is replaced while the old one still works");
    }
}
