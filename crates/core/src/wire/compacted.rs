//! The mark of a compaction: what ties the text that stands for earlier messages to those messages in the record.
//!
//! A client sends such a text back in place of a history, and may have changed it or made it up. The mark names the
//! conversation and how far its record goes, and is authentic only with the text that it was made for. Both APIs that have
//! compaction carry it: Anthropic's blocks in a field of their own beside the text, OpenAI's items in one field with it
//! ([`joined`]).

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::conversation::Digest;

/// A secret of the record. Whoever has it can make marks.
pub type Key = [u8; 32];

/// How a mark begins. What begins otherwise was made elsewhere.
const START: &str = "windowsill-compacted:";

/// What the key is used for, so that the same secret may have other uses.
const PURPOSE: &str = "windowsill 2026-11 mark of a compaction";

/// Messages of the record that a text stands for: the first `depth` of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Id of the conversation.
    pub conversation: String,
    /// Chain digest of the last of the messages.
    pub chain: Digest,
    /// How many messages they are.
    pub depth: usize,
}

impl Origin {
    /// The mark of `text`, which stands for these messages: letters, digits, `-`, `_`, `.` and `:`.
    pub fn mark(&self, key: &Key, text: &str) -> String {
        format!("{}.{}", self.claim(), self.code(key, text).to_hex())
    }

    /// What a mark says before its proof.
    fn claim(&self) -> String {
        let conversation = URL_SAFE_NO_PAD.encode(&self.conversation);
        format!("{START}{}.{}.{conversation}", self.depth, self.chain.hex())
    }

    fn code(&self, key: &Key, text: &str) -> blake3::Hash {
        let claim = self.claim();
        let mut code = blake3::Hasher::new_keyed(&blake3::derive_key(PURPOSE, key));
        // The claim has no line end: where it ends is clear.
        code.update(claim.as_bytes()).update(b"\n").update(text.as_bytes());
        code.finalize()
    }
}

/// Whether something is a mark of some windowsill's, authentic or not.
pub fn is_mark(mark: &str) -> bool {
    claimed(mark).is_some()
}

/// The messages that `text` stands for, where the mark was made for it with this key. `None` for any other: then the text is
/// only a text.
pub fn opened(key: &Key, mark: &str, text: &str) -> Option<Origin> {
    let (origin, code) = claimed(mark)?;
    // Compared in constant time.
    (origin.code(key, text) == code).then_some(origin)
}

fn claimed(mark: &str) -> Option<(Origin, blake3::Hash)> {
    let mut parts = mark.strip_prefix(START)?.split('.');
    let mut next = || parts.next();
    let (depth, chain, conversation, code) = (next()?, next()?, next()?, next()?);
    let conversation = String::from_utf8(URL_SAFE_NO_PAD.decode(conversation).ok()?).ok()?;
    let origin = Origin { conversation, chain: Digest::from_hex(chain)?, depth: depth.parse().ok()? };
    // Spelled in one way only.
    let rest = parts.next().is_none() && mark.starts_with(&format!("{}.", origin.claim()));
    rest.then_some((origin, blake3::Hash::from_hex(code).ok()?))
}

/// A mark and its text in one string, for an API that has one field for both.
pub fn joined(mark: &str, text: &str) -> String {
    format!("{mark}\n{text}")
}

/// The mark and the text of what [`joined`] wrote. `None` for what was made elsewhere.
pub fn parted(whole: &str) -> Option<(&str, &str)> {
    whole.split_once('\n').filter(|(mark, _)| is_mark(mark))
}

/// The text of a compaction as a message that stands for what came before it. It is told in the same words whoever sends it.
pub fn told(text: &str) -> Cow<'_, str> {
    if text.starts_with("[windowsill brief of ") {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("[summary of the earlier conversation]\n{text}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: Key = [7; 32];

    fn origin(conversation: &str, depth: usize) -> Origin {
        Origin { conversation: conversation.into(), chain: Digest::of(b"chain"), depth }
    }

    #[test]
    fn a_mark_holds_for_its_text_and_its_key_alone() {
        let origin = origin("c0123456789ab", 42);
        let mark = origin.mark(&KEY, "the brief");
        assert!(is_mark(&mark) && mark.is_ascii() && !mark.contains(char::is_whitespace));
        assert_eq!(opened(&KEY, &mark, "the brief"), Some(origin.clone()));
        assert_eq!(opened(&KEY, &mark, "another"), None);
        assert_eq!(opened(&[8; 32], &mark, "the brief"), None);
        let deeper = Origin { depth: 43, ..origin.clone() };
        let code = mark.rsplit_once('.').unwrap().1;
        assert_eq!(opened(&KEY, &format!("{}.{code}", deeper.claim()), "the brief"), None);
        for forged in ["", "windowsill-compacted:", "EqQBCgIYAhIM", &mark[1..], &format!("{mark}.")] {
            assert!(!is_mark(forged) && opened(&KEY, forged, "the brief").is_none(), "{forged}");
        }
    }

    #[test]
    fn a_mark_and_its_text_go_in_one_field() {
        let mark = origin("a name\nwith. all", 1).mark(&KEY, "a\nb");
        assert_eq!(parted(&joined(&mark, "a\nb")), Some((mark.as_str(), "a\nb")));
        assert_eq!(parted("gAAAAABexample\nother"), None);
    }

    proptest! {
        #[test]
        fn whatever_is_named_is_read_back(conversation in ".{0,40}", text in ".{0,80}", depth in any::<usize>()) {
            let origin = origin(&conversation, depth);
            let mark = origin.mark(&KEY, &text);
            prop_assert_eq!(opened(&KEY, &mark, &text), Some(origin));
        }

        #[test]
        fn nothing_else_is_taken_for_a_mark(mark in "(windowsill-compacted:)?[0-9a-zA-Z_.-]{0,120}", text in ".{0,20}") {
            prop_assert_eq!(opened(&KEY, &mark, &text), None);
        }
    }
}
