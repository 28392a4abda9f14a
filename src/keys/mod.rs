//! Who may come in: the keys of the config and what each has taken of its quotas, the sessions of browsers, and the audit log.
//! It knows no request and no conversation; the front door asks it.

pub mod audit;
pub mod quota;
mod session;

use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::config::{KeyConfig, TokenHash};
pub use session::{Sessions, token};

/// A key that is let in.
#[derive(Debug)]
pub struct Key {
    /// What the config says of it.
    pub config: KeyConfig,
    /// Canceled once the key is taken back, or nothing more is served: what would go on for ever ends then.
    pub over: CancellationToken,
}

/// The keys that are let in now.
#[derive(Debug, Default)]
pub struct Ring(Vec<Arc<Key>>);

impl Ring {
    /// These keys. Those that `earlier` has, too, stay what they are; of the others, what goes on ends.
    pub fn renewed(earlier: &Ring, keys: Vec<KeyConfig>, stopping: &CancellationToken) -> Ring {
        // Where something stands in the file is no matter.
        let same = |known: &KeyConfig, key: &KeyConfig| KeyConfig { place: key.place.clone(), ..known.clone() } == *key;
        let kept = |key: KeyConfig| match earlier.0.iter().find(|known| same(&known.config, &key)) {
            Some(known) => Arc::clone(known),
            None => Arc::new(Key { config: key, over: stopping.child_token() }),
        };
        let now = Ring(keys.into_iter().map(kept).collect());
        for key in earlier.0.iter().filter(|key| !now.0.iter().any(|stays| Arc::ptr_eq(stays, key))) {
            key.over.cancel();
        }
        now
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.0.iter()
    }

    /// The key of a token. Every key is looked at: the time tells nothing of which one it is.
    pub fn of_token(&self, token: &str) -> Option<Arc<Key>> {
        self.of_hash(TokenHash::of(token))
    }

    /// The key of a token's hash.
    pub fn of_hash(&self, hash: TokenHash) -> Option<Arc<Key>> {
        self.0.iter().fold(None, |found, key| if key.config.hash == hash { Some(Arc::clone(key)) } else { found })
    }

    /// The names of all scopes that the keys name, in order.
    pub fn scopes(&self) -> Vec<String> {
        let mut names: Vec<String> = self.0.iter().map(|key| key.config.scope.clone()).collect();
        names.sort();
        names.dedup();
        names
    }
}

/// The file that keys stand in. It blocks, but never waits for a writer of a named pipe.
///
/// # Errors
/// When it cannot be read.
pub fn file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    crate::files::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, token: &str) -> KeyConfig {
        KeyConfig {
            name: name.to_owned(),
            hash: TokenHash::of(token),
            scope: name.to_owned(),
            admin: false,
            tokens_per_minute: 0,
            requests_at_once: 0,
            place: format!("config.toml:{name}"),
        }
    }

    #[test]
    fn a_key_that_stays_goes_on_and_one_that_is_taken_back_ends() {
        let stopping = CancellationToken::new();
        let first = Ring::renewed(&Ring::default(), vec![key("ann", "a"), key("bob", "b")], &stopping);
        let (ann, bob) = (first.of_token("a").unwrap(), first.of_token("b").unwrap());
        let moved = KeyConfig { place: "config.toml:99".to_owned(), ..key("ann", "a") };
        let second = Ring::renewed(&first, vec![moved, key("bob", "b2")], &stopping);
        assert!(Arc::ptr_eq(&second.of_token("a").unwrap(), &ann) && !ann.over.is_cancelled());
        assert!(second.of_token("b").is_none() && bob.over.is_cancelled());
        assert_eq!(second.of_token("b2").unwrap().config.name, "bob");
        assert!(second.of_token("").is_none());
        stopping.cancel();
        assert!(ann.over.is_cancelled());
        assert_eq!(first.scopes(), ["ann", "bob"]);
    }
}
