//! A value that must not be seen: it has no `Display`, and its `Debug` shows nothing of it.

use std::fmt;

/// A key or token.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The secret itself, for the one place that sends or compares it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether `given` is the secret, in a time that tells nothing of how much of it is right.
    pub fn is(&self, given: &str) -> bool {
        // Equal digests are equal texts, and how far unequal digests agree tells nothing of the text.
        blake3::hash(self.0.as_bytes()) == blake3::hash(given.as_bytes())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_compares_and_stays_hidden() {
        let secret = Secret::new("sk-123");
        assert!(secret.is("sk-123"));
        assert!(!secret.is("sk-12"));
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }
}
