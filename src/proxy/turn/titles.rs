//! What a conversation is called where nobody named it.

use crate::conversation::{Conversation, Role, person};

/// Characters of a title.
const TITLE: usize = 80;

/// The first words of a person; where there are none, of the first user message. A client's examples are neither.
pub(in crate::proxy) fn title(conversation: &Conversation) -> String {
    let body = person::without_examples(&conversation.body);
    let words = body.iter().filter_map(person::words).find(|words| !words.is_empty());
    let first =
        words.unwrap_or_else(|| body.iter().find(|m| m.role == Role::User).map_or("", |m| m.text.as_str()).into());
    at_a_word(&first.split_whitespace().take(TITLE).collect::<Vec<_>>().join(" "), TITLE)
}

/// A text in at most `most` characters. Where it is cut, it ends with a whole word, if it has words, and "…".
pub(in crate::proxy) fn at_a_word(text: &str, most: usize) -> String {
    let Some((end, _)) = text.char_indices().nth(most.saturating_sub(1)).filter(|_| text.chars().nth(most).is_some())
    else {
        return text.to_owned();
    };
    let cut = &text[..end];
    let goes_on = !text[end..].starts_with(char::is_whitespace);
    // Where words are long, or not divided by spaces, the cut is where it is.
    let word = cut.rfind(char::is_whitespace).filter(|at| goes_on && at * 2 > end).unwrap_or(end);
    format!("{}…", cut[..word].trim_end().trim_end_matches([',', ';', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::openai_chat;
    use serde_json::{Value, json};

    #[test]
    fn titles_end_with_a_word_and_are_no_examples() {
        for (text, expect) in [
            ("Fix a bug", "Fix a bug"),
            ("one two three four", "one two…"),
            ("one twothree four", "one twoth…"),
            ("one two, three", "one two…"),
            ("one two th", "one two th"),
            ("日本語の長い題名はここで切れる", "日本語の長い題名は…"),
        ] {
            let title = at_a_word(text, 10);
            assert_eq!(title, expect);
            assert!(title.chars().count() <= 10, "{title}");
        }
        let said = [
            "Change get_factorial() to use math.factorial",
            "I switched to a new code base. Please don't consider the above files.",
            "I have *added these files to the chat*: a.py",
            "Please mend the harbor, and do it in such a way that no ship has to wait outside for long.",
        ];
        let messages: Vec<Value> = said.iter().map(|text| json!({"role": "user", "content": text})).collect();
        let of = |messages: &[Value]| {
            title(
                &openai_chat::parse(&json!({"model": "m", "messages": messages}).to_string().into())
                    .unwrap()
                    .conversation,
            )
        };
        assert_eq!(of(&messages), "Please mend the harbor, and do it in such a way that no ship has to wait…");
        assert_eq!(of(&messages[..1]), said[0], "alone it is no example");
    }
}
