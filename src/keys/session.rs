//! What a browser shows instead of a token: a session, which lives in this process and ends with its key.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::TokenHash;

/// How long a session lasts that is not used.
const LASTS: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// So many sessions are kept; the one that was not used for longest goes. Only who has a key can begin one.
const MOST: usize = 4096;

/// 256 random bits from the system, as text that headers and shells take as it is.
///
/// # Errors
/// When the system gives none.
pub fn token() -> io::Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|e| io::Error::other(e.to_string()))?;
    let mut text = String::from("wsk_");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// The sessions of browsers: each by the hash of its name, with the hash of the key that it was begun with.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<HashMap<String, (TokenHash, Instant)>>);

impl Sessions {
    /// Begins a session; returns its name, which only the browser keeps.
    ///
    /// # Errors
    /// When the system gives no random bits.
    pub fn begin(&self, key: TokenHash, now: Instant) -> io::Result<String> {
        let name = token()?;
        let mut all = self.0.lock();
        all.retain(|_, (_, used)| now.duration_since(*used) < LASTS);
        if all.len() >= MOST
            && let Some(oldest) = all.iter().min_by_key(|(_, (_, used))| *used).map(|(name, _)| name.clone())
        {
            all.remove(&oldest);
        }
        all.insert(TokenHash::of(&name).to_string(), (key, now));
        Ok(name)
    }

    /// The hash of the key that a session was begun with.
    pub fn key_of(&self, name: &str, now: Instant) -> Option<TokenHash> {
        let mut all = self.0.lock();
        let (key, used) = all.get_mut(&TokenHash::of(name).to_string())?;
        if now.duration_since(*used) >= LASTS {
            return None;
        }
        *used = now;
        Some(*key)
    }

    /// Ends the sessions of all keys but these.
    pub fn keep(&self, is_known: impl Fn(TokenHash) -> bool) {
        self.0.lock().retain(|_, (key, _)| is_known(*key));
    }

    /// Ends a session.
    pub fn end(&self, name: &str) {
        self.0.lock().remove(&TokenHash::of(name).to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_lasts_while_it_is_used() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let name = sessions.begin(TokenHash::of("a"), start).unwrap();
        let other = sessions.begin(TokenHash::of("b"), start).unwrap();
        assert!(name != other && name.len() == 68);
        let later = start + LASTS - Duration::from_secs(1);
        assert!(sessions.key_of(&name, later) == Some(TokenHash::of("a")));
        assert!(sessions.key_of(&name, later + Duration::from_secs(60)).is_some());
        assert!(sessions.key_of(&other, later + Duration::from_secs(60)).is_none());
        sessions.end(&name);
        assert!(sessions.key_of(&name, later).is_none() && sessions.key_of("", later).is_none());
    }
}
