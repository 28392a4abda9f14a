//! Whether the arguments of a call are whole, as they arrive. Each byte is looked at once: a reply of many parts costs what its
//! bytes cost.

use serde::de::IgnoredAny;

/// Follows the arguments of one call.
#[derive(Debug, Default)]
pub(super) struct Whole {
    state: State,
    /// Bytes that were looked at.
    read: usize,
    /// Brackets that are open.
    depth: usize,
    in_string: bool,
    escaped: bool,
}

/// How far they are.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but white space.
    #[default]
    Before,
    /// In an object.
    Within,
    /// Behind an object: nothing can follow but white space.
    Whole,
    /// No object, or more than one.
    Other,
}

impl Whole {
    /// Whether these arguments are a JSON object, so that nothing can follow. They begin with those of the call before.
    pub(super) fn is(&mut self, arguments: &str) -> bool {
        let from = std::mem::replace(&mut self.read, arguments.len());
        for (at, byte) in arguments.bytes().enumerate().skip(from) {
            let closed = self.state == State::Within && self.closes(byte);
            match self.state {
                State::Other => break,
                State::Before | State::Whole if byte.is_ascii_whitespace() => {}
                State::Before if byte == b'{' => (self.state, self.depth) = (State::Within, 1),
                State::Before | State::Whole => self.state = State::Other,
                State::Within if closed => {
                    let object = serde_json::from_str::<IgnoredAny>(&arguments[..=at]).is_ok();
                    self.state = if object { State::Whole } else { State::Other };
                }
                State::Within => {}
            }
        }
        self.state == State::Whole
    }

    /// Whether this byte closes the object.
    fn closes(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_string => self.escaped = true,
            b'"' => self.in_string = !self.in_string,
            _ if self.in_string => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth -= 1,
            _ => {}
        }
        self.depth == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_whole_where_they_are_an_object() {
        for text in [
            "{}",
            " \n{\"a\": {\"b\": [1, \"}\", \"\\\\\", \"\\\"}\"]}} \t",
            "{\"é\": \"世}\"}",
            "[]",
            "\"{}\"",
            "{\"a\": }",
            "{\"a\": \"b\"}}",
            "{} {}",
            "{]",
            "}",
            "",
        ] {
            let is_object =
                |text: &str| serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text).is_ok();
            let mut whole = Whole::default();
            let ends = (0..=text.len()).filter(|end| text.is_char_boundary(*end));
            ends.for_each(|end| assert_eq!(whole.is(&text[..end]), is_object(&text[..end]), "{}", &text[..end]));
            assert_eq!(Whole::default().is(text), is_object(text), "{text}");
        }
    }
}
