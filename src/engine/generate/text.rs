//! PURE: the text of a reply as its tokens come in, and how much of it can be told: no half characters, and nothing that may
//! become one of the texts that end the reply.

/// A reply's text so far.
#[derive(Debug, Default)]
pub(super) struct Text {
    text: String,
    /// Bytes of a character that is not whole yet.
    half: Vec<u8>,
    stops: Vec<String>,
    /// The one of the texts that end it which came.
    stopped: Option<String>,
}

impl Text {
    /// An empty one, ended by any of these.
    pub(super) fn new(stops: impl IntoIterator<Item = String>) -> Text {
        Text { stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(), ..Text::default() }
    }

    /// Takes the bytes of a token. Returns whether the reply is to go on.
    pub(super) fn push(&mut self, piece: &[u8]) -> bool {
        let before = self.text.len();
        self.half.extend_from_slice(piece);
        let mut rest = std::mem::take(&mut self.half);
        loop {
            match std::str::from_utf8(&rest) {
                Ok(whole) => {
                    self.text.push_str(whole);
                    break;
                }
                Err(error) => {
                    let (whole, other) = rest.split_at(error.valid_up_to());
                    self.text.push_str(std::str::from_utf8(whole).unwrap_or_default());
                    match error.error_len() {
                        // The next token may bring the rest of it.
                        None => {
                            self.half = other.to_vec();
                            break;
                        }
                        Some(bad) => {
                            self.text.push(char::REPLACEMENT_CHARACTER);
                            rest = other[bad..].to_vec();
                        }
                    }
                }
            }
        }
        self.cut(before)
    }

    /// Cuts the text at the first of the texts that end it, if one ends behind `before`.
    fn cut(&mut self, before: usize) -> bool {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let mut from = before.saturating_sub(longest);
        while !self.text.is_char_boundary(from) {
            from -= 1;
        }
        let found = self.stops.iter().filter_map(|stop| Some((self.text[from..].find(stop.as_str())?, stop.clone())));
        if let Some((at, stop)) = found.min_by_key(|(at, _)| *at) {
            self.text.truncate(from + at);
            self.half.clear();
            self.stopped = Some(stop);
        }
        self.stopped.is_none()
    }

    /// The text that ended it.
    pub(super) fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// No more tokens come: a character that is not whole becomes U+FFFD.
    pub(super) fn end(&mut self) {
        if !std::mem::take(&mut self.half).is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    /// All of it.
    pub(super) fn whole(&self) -> &str {
        &self.text
    }

    /// The part that will not be taken back.
    pub(super) fn sure(&self) -> &str {
        if self.stopped.is_some() {
            return &self.text;
        }
        let begun = |stop: &String| {
            let ends = stop.char_indices().map(|(at, _)| at).skip(1);
            ends.filter(|n| self.text.ends_with(&stop[..*n])).max()
        };
        let held = self.stops.iter().filter_map(begun).max().unwrap_or(0);
        &self.text[..self.text.len() - held]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(stops: &[&str]) -> Text {
        Text::new(stops.iter().map(|s| (*s).to_owned()))
    }

    #[test]
    fn a_text_ends_before_what_ends_it_and_holds_back_what_may_become_that() {
        let mut t = text(&["</end>", "STOP", ""]);
        assert!(t.push(b"so far </e"));
        assert_eq!((t.sure(), t.whole()), ("so far ", "so far </e"));
        assert!(t.push(b"xit> S"));
        assert_eq!(t.sure(), "so far </exit> ");
        assert!(!t.push(b"TOP and more </end>"));
        assert_eq!((t.sure(), t.whole(), t.stopped()), ("so far </exit> ", "so far </exit> ", Some("STOP")));
    }

    #[test]
    fn characters_come_whole() {
        let mut t = text(&[]);
        for byte in "é日🦀".as_bytes() {
            assert!(t.push(&[*byte]));
        }
        assert_eq!(t.whole(), "é日🦀");
        assert!(t.push(b"a\xffb\xe6"));
        assert_eq!(t.whole(), "é日🦀a\u{fffd}b");
        t.end();
        assert_eq!(t.whole(), "é日🦀a\u{fffd}b\u{fffd}");
    }

    proptest! {
        #[test]
        fn however_a_text_comes_in_it_is_cut_before_what_ends_it(
            whole in "[abé日 ]{0,40}", stops in prop::collection::vec("[abé日]{1,4}", 0..3), step in 1usize..5,
        ) {
            let mut t = Text::new(stops.clone());
            let mut told = String::new();
            for piece in whole.as_bytes().chunks(step) {
                let on = t.push(piece);
                prop_assert!(t.sure().starts_with(&told));
                told = t.sure().to_owned();
                if !on {
                    break;
                }
            }
            t.end();
            // Of two that overlap, the one that was whole first counts.
            prop_assert!(whole.starts_with(t.whole()));
            prop_assert!(stops.iter().all(|stop| !t.whole().contains(stop.as_str())));
            let rest = &whole[t.whole().len()..];
            prop_assert!(rest.is_empty() || stops.iter().any(|stop| rest.starts_with(stop.as_str())));
        }
    }
}
