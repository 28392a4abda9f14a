//! What of a question tells the form of its answer ("Give it in the format HH:MM (e.g. 01:30)"). Nothing that was said before is
//! found by that, and it hides what is.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

/// An example in brackets.
static EXAMPLE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"(?i)[(（]\s*(?:(?:ex|e\.?\s?g|for example|z\.?\s?b|zum beispiel|par ex\w*|p\.?\s?ej|por e[jx]\w*|per es\w*|например)\b|例)[^()（）]*[)）]",
    )
    .expect("it is a constant")
});

/// A sentence that orders an answer.
static ORDERS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"(?i)^\W*(?:please\s+|bitte\s+)?(?:give|return|answer|reply|respond|write|state|express|provide|format|round|mention|use|keep|limit|antworten?|gib|geben|nenne|r[ée]pond(?:s|ez)|donnez?|respond[ae]|da(?:me)?|indica|rispondi|ответь(?:те)?|дай(?:те)?)\b",
    )
    .expect("it is a constant")
});

/// Words of the form of an answer.
static FORM: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"(?ix)\b(?:formato?|rounded|nearest|decimals?|digits|answer|reply|bullets?
        |(?:\d+|one|two|three|four|five|six|seven|eight|nine|ten|a\ few)\s+(?:items?|words?|sentences?|lines?|points?)
        |gerundet|antwort|stichpunkte[n]?|wort(?:en?)?|sätzen?|arrondie?s?|r[ée]ponse|mots|phrases?|respuesta|redondead[oa]|palabras
        |risposta|parole|формат[еа]?|слов(?:ами|ах)?)\b",
    )
    .expect("it is a constant")
});

/// A text without what tells the form of the answer: examples in brackets, and sentences behind a question that order its form.
pub(super) fn without(text: &str) -> Cow<'_, str> {
    let text = EXAMPLE.replace_all(text, " ");
    let mut asked = false;
    let mut kept = String::new();
    for sentence in text.split_inclusive(['?', '!', '\n', '。', '？', '！']).flat_map(|part| part.split_inclusive(". "))
    {
        if !(asked && ORDERS.is_match(sentence) && FORM.is_match(sentence)) {
            kept.push_str(sentence);
        }
        asked |= sentence.trim_end().ends_with(['?', '？']);
    }
    if kept.len() == text.len() { text } else { Cow::Owned(kept) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_an_answer_is_no_question() {
        for (text, expect) in [
            ("What was the A1C value? Give it in % rounded to the nearest tenth (ex: 7.9).", "What was the A1C value?"),
            ("When do I get up? Return in the format of HH:MM AM/PM (e.g. 01:30 AM).", "When do I get up?"),
            ("In which order did I ask? Mention ONLY and ONLY three items.", "In which order did I ask?"),
            ("Wann stehe ich auf? Antworte im Format HH:MM (z. B. 07:30).", "Wann stehe ich auf?"),
            ("À quelle heure ? Réponds en trois mots.", "À quelle heure ?"),
            ("¿A qué hora? Responde con dos palabras (p. ej. las siete).", "¿A qué hora?"),
        ] {
            assert_eq!(without(text).trim(), expect);
        }
        for text in [
            "Where did I put the keys? Give me the address of the locksmith, too.",
            "Which of them is it? Pick one of: puzzles, jogging, gardening.",
            "Give me the answer in the format of a table.",
            "Return the value 7.9 (the one of May). Is that right?",
            "Use two lines of the log (they are below). Why does it fail?",
            "",
        ] {
            assert_eq!(without(text), text);
        }
    }
}
