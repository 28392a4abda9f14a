//! What the end of a history points back at: the words that a person asks with, or the names in an error.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::LazyLock;

use regex::Regex;

use super::{form, place};
use crate::conversation::step::call_of;
use crate::conversation::{Message, Role, files, person};
use crate::passage::Found;
use crate::preview::clean::floor;
use crate::preview::signal::{Grade, grade};
use crate::salience;

/// What points back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// Words of a person.
    Words,
    /// Trouble in a result: a traceback, a failing test, an edit that found no place.
    Trouble,
}

/// Whose words a person asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// Their own: "where did I …".
    Person,
    /// The assistant's: "what did you say about …".
    Assistant,
    /// Anybody's.
    Anyone,
}

/// What the last message points at, as a search asks for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Cue {
    /// What points back.
    pub of: Of,
    /// The query: words or names, the white space between them single.
    pub query: String,
    /// Whose words are asked for.
    pub about: About,
    /// The words of the person, as they said them; empty where none did.
    pub said: String,
    /// Lines of files that trouble points at, as they were read before. They come first, where they are missing.
    pub places: Vec<Found>,
}

/// A longer message of a person, in bytes, is asked for by its questions, its beginning and its end alone.
const LONG: usize = 600;

/// Sentences of a long message that are taken at most.
const SENTENCES: usize = 4;

/// Lines of trouble and names in them that are looked at.
const LINES: usize = 40;
const NAMES: usize = 12;

/// Bytes of a result that are read for trouble.
const READ: usize = 1 << 16;

/// What the last message of a history points at, where it points at anything: the messages after it, if any, are no part of the
/// question. A person's nod ("go on") and a result without trouble point at nothing.
pub fn cue(body: &[Message]) -> Option<Cue> {
    let (at, last) = body.iter().enumerate().next_back()?;
    let (mut about, mut said, mut places) = (About::Anyone, String::new(), Vec::new());
    let (of, query) = match last.role {
        Role::User => match person::said(&last.text) {
            person::Said::Person(words) => {
                said = words.to_string();
                let asks = sentences(&said);
                let question = form::without(&asks);
                about = About::of(&question);
                (Of::Words, asked(&question))
            }
            person::Said::Output => {
                let query = trouble(&last.text, &[]);
                if !query.is_empty() {
                    places = place::pointed_at(body, &last.text);
                }
                (Of::Trouble, query)
            }
            _ => return None,
        },
        Role::Tool => {
            let made = call_of(body, at).map(|(message, call)| &body[message].calls[call]);
            let paths = made.map(files::accesses).unwrap_or_default();
            let paths: Vec<&str> = paths.iter().map(|access| access.path.as_str()).collect();
            let query = trouble(&last.text, &paths);
            let unfound = place::unfound(body);
            // Of a failed edit, the lines that it looked for say more than all that names its file.
            let query = if unfound.as_ref().is_some_and(|found| !found.is_empty()) { String::new() } else { query };
            places = match unfound {
                Some(found) => found,
                None if query.is_empty() => Vec::new(),
                None => place::pointed_at(body, &last.text),
            };
            (Of::Trouble, query)
        }
        _ => return None,
    };
    (!query.is_empty() || !places.is_empty()).then_some(Cue { of, query, about, said, places })
}

/// The words of a person's message that a search can find something by.
fn asked(words: &str) -> String {
    let mut seen = HashSet::new();
    let kept = words.split_whitespace().filter(|word| {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
        let bare = bare.split(['\'', '’']).next().unwrap_or_default();
        !bare.is_empty() && !is_common(bare) && seen.insert(bare.to_owned())
    });
    kept.collect::<Vec<_>>().join(" ")
}

impl About {
    fn of(words: &str) -> About {
        match words {
            words if is_of_assistant(words) => About::Assistant,
            words if is_of_self(words) => About::Person,
            _ => About::Anyone,
        }
    }
}

/// Whether a person speaks of what the assistant said.
fn is_of_assistant(words: &str) -> bool {
    static SAID: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(
            r"(?ix)\b(?:did\s+you|have\s+you|you\s+(?:had\s+|have\s+|just\s+|also\s+)?(?:said|told|gave|given|wrote|written|\w+ed)
            |your\s+(?:advice|answer|list|explanation|recommendations?|suggestions?)
            |hast\s+du|du\s+hast|haben\s+sie|as-tu|tu\s+(?:m['’])?as|avez-vous|vous\s+(?:m['’])?avez
            |dijiste|diste|recomendaste|sugeriste|mencionaste|hai\s+detto|(?:ты|вы)\s+(?:мне\s+)?(?:говорил|сказал|советовал|писал)\w*)\b
            |你(?:说|建议|推荐|提|给)|あなたが(?:言|勧|教)",
        )
        .expect("it is a constant")
    });
    SAID.is_match(&words[..floor(words, LONG)])
}

/// Whether a person speaks of themselves.
fn is_of_self(words: &str) -> bool {
    let lower = words[..floor(words, LONG)].to_lowercase();
    let mut all = lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    all.any(|word| SELF.contains(&word)) || SELF_WIDE.iter().any(|word| lower.contains(word))
}

/// Words by which people speak of themselves.
const SELF: &[&str] = &[
    "i", "my", "me", "mine", "we", "our", "ich", "mein", "meine", "meinen", "meiner", "mir", "mich", "wir", "unser",
    "unsere", "je", "j", "mon", "ma", "mes", "moi", "notre", "nos", "yo", "mi", "mis", "nuestro", "nuestra", "eu",
    "meu", "minha", "io", "mio", "mia", "я", "мой", "моя", "мне", "меня", "мы",
];

/// The same where no spaces stand between words.
const SELF_WIDE: &[&str] = &["我", "私", "僕", "저는", "제가", "나는", "내가"];

/// A short message whole; of a long one its questions, its first sentence and its last ones.
fn sentences(text: &str) -> Cow<'_, str> {
    if text.len() <= LONG {
        return Cow::Borrowed(text);
    }
    let all: Vec<&str> = text.split_inclusive(['.', '?', '!', '\n', '。', '？', '！']).map(str::trim).collect();
    let all: Vec<&str> = all.into_iter().filter(|sentence| sentence.chars().any(char::is_alphanumeric)).collect();
    let asks = |sentence: &&&str| sentence.ends_with(['?', '？']);
    let mut out: Vec<&str> = all.iter().rev().filter(asks).take(SENTENCES).copied().collect();
    out.extend(all.first());
    out.extend(all.iter().rev().take(2));
    let cut = |sentence: &&str| -> String { sentence[..floor(sentence, LONG / 2)].to_owned() };
    Cow::Owned(out.iter().map(cut).collect::<Vec<_>>().join(" "))
}

/// The names in the lines of trouble of a result, and the files that its call names.
fn trouble(text: &str, paths: &[&str]) -> String {
    let graded = grade(&text[..floor(text, READ)]);
    let lines = graded.lines.iter().zip(&graded.grades);
    let bad: Vec<&str> =
        lines.filter(|(line, grade)| **grade >= Grade::Trouble || is_frame(line)).map(|l| *l.0).collect();
    if !graded.grades.contains(&Grade::Error) {
        return String::new();
    }
    let mut out: Vec<&str> = Vec::new();
    // The end of a traceback says where it happened.
    for line in bad.iter().rev().take(LINES) {
        for name in salience::names(line).map(|name| &line[name]) {
            if out.len() < NAMES && !out.contains(&name) {
                out.push(name);
            }
        }
    }
    out.extend(paths.iter().filter(|path| !path.is_empty()).take(2));
    out.join(" ")
}

/// Whether a line names a place in a file, as a traceback's frames do.
fn is_frame(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("File \"") || line.starts_with("at ") || line.starts_with("--> ")
}

/// Words that stand in every second sentence and tell nothing apart.
fn is_common(word: &str) -> bool {
    COMMON.binary_search(&word).is_ok()
}

/// Articles, pronouns, auxiliaries and the like of some languages, sorted by their bytes.
#[rustfmt::skip]
const COMMON: &[&str] = &[
    "a", "abbiamo", "aber", "about", "across", "after", "again", "ai", "al", "all", "also", "am", "an", "anche", "and",
    "any", "are", "as", "at", "auch", "auf", "aus", "aussi", "avec", "avez", "avons", "be", "because", "been",
    "before", "bei", "being", "between", "bitte", "both", "but", "by", "can", "ce", "ces", "cet", "cette", "che",
    "chi", "com", "come", "comment", "como", "con", "continue", "continuez", "conversation", "conversations", "cosa",
    "could", "cuando", "cuál", "cuáles", "cuándo", "cómo", "danke", "dans", "das", "dass", "de", "dein", "deine",
    "del", "dem", "den", "der", "des", "dich", "did", "die", "different", "dir", "do", "does", "doing", "done", "dove",
    "du", "during", "déjà", "dónde", "e", "each", "ed", "ein", "eine", "einem", "einen", "einer", "el", "ela", "ele",
    "ella", "elle", "elles", "en", "er", "era", "es", "est", "et", "eu", "ever", "few", "for", "from", "fue",
    "further", "für", "get", "give", "gli", "go", "good", "got", "gracias", "great", "ha", "habe", "haben", "had",
    "hai", "han", "has", "hat", "hatte", "have", "having", "he", "hello", "hemos", "her", "here", "hers", "hi", "him",
    "his", "ho", "how", "i", "ich", "if", "ihr", "il", "ils", "im", "in", "into", "io", "is", "ist", "it", "its", "je",
    "just", "kann", "kannst", "know", "la", "las", "le", "lei", "les", "let", "like", "list", "lo", "long", "los",
    "lui", "ma", "made", "mais", "make", "mal", "many", "mas", "may", "me", "mein", "meine", "meinen", "mention",
    "mentioned", "merci", "mes", "meu", "mi", "mia", "mich", "might", "minha", "mio", "mir", "mis", "mit", "mon",
    "more", "most", "much", "my", "más", "nach", "ne", "need", "next", "nice", "nicht", "no", "noch", "non", "nor",
    "nosotros", "not", "nous", "now", "nur", "não", "o", "oder", "of", "off", "ok", "okay", "on", "once", "onde",
    "only", "ont", "or", "os", "other", "ou", "our", "ours", "out", "over", "own", "où", "par", "para", "pas", "per",
    "perché", "pero", "più", "please", "plus", "por", "pour", "pourquoi", "quais", "qual", "quand", "quando", "que",
    "quel", "quelle", "quelles", "quels", "quem", "qui", "quién", "quoi", "qué", "right", "s", "sa", "said", "same",
    "sans", "say", "schon", "se", "sein", "seine", "sem", "senza", "ses", "seu", "she", "should", "sie", "sigue",
    "sim", "sin", "sind", "so", "some", "son", "sono", "sont", "still", "su", "sua", "such", "sur", "sure", "sus",
    "são", "sí", "ta", "también", "te", "tell", "tes", "than", "thank", "thanks", "that", "the", "their", "theirs",
    "them", "then", "there", "these", "they", "this", "those", "through", "throughout", "to", "ton", "too", "tu",
    "tua", "tuo", "tus", "tú", "um", "uma", "un", "una", "unas", "und", "under", "une", "uno", "unos", "uns", "until",
    "up", "us", "used", "using", "very", "você", "von", "vor", "vous", "wann", "want", "war", "waren", "warum", "was",
    "we", "weiter", "welche", "welcher", "welches", "wenn", "wer", "were", "what", "when", "where", "whether", "which",
    "while", "who", "whom", "whose", "why", "wie", "will", "wir", "with", "wo", "would", "y", "ya", "yep", "yes", "yo",
    "you", "your", "yours", "zu", "zum", "zur", "è", "é", "él", "était", "über", "а", "бы", "в", "во", "вы", "где",
    "для", "до", "же", "за", "и", "из", "или", "к", "как", "когда", "кто", "ли", "меня", "мне", "мои", "мой", "моя",
    "мы", "на", "не", "но", "о", "об", "он", "она", "они", "от", "по", "с", "со", "ты", "у", "что", "это", "я",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::openai_chat as wire;

    fn cue_of(messages: &[&str]) -> Option<Cue> {
        let body: Vec<Message> = messages.iter().map(|raw| wire::message((*raw).to_owned().into()).unwrap()).collect();
        cue(&body)
    }

    fn asked_by(text: &str) -> Option<(String, About)> {
        let raw = serde_json::json!({"role": "user", "content": text}).to_string();
        cue_of(&[&raw]).map(|cue| (cue.query, cue.about))
    }

    #[test]
    fn common_words_are_sorted_and_ask_for_nothing() {
        assert!(COMMON.is_sorted() && is_common("the") && is_common("où") && !is_common("walnut"));
        let of = |text: &str| asked_by(text).unwrap();
        assert_eq!(of("Where did I buy the walnut table, please?"), ("buy walnut table,".into(), About::Person));
        assert_eq!(of("What's the port of `db-1`?"), ("port `db-1`?".into(), About::Anyone));
        assert_eq!(of("Wo habe ich den Tisch gekauft?"), ("Tisch gekauft?".into(), About::Person));
        assert_eq!(of("我的桌子在哪里买的？").1, About::Person);
        for text in
            ["What did you tell me about oil?", "Which wood have you recommended?", "Was hast du mir zum Öl gesagt?"]
        {
            assert_eq!(of(text).1, About::Assistant, "{text}");
        }
        assert_eq!(of("Can you find the port of my table?").1, About::Person);
        // The form of an answer is nothing that was said.
        let of_form = of("What was the A1C value? Give me the answer in % rounded to the nearest tenth (ex: 7.9).");
        assert_eq!(of_form, ("A1C value?".into(), About::Anyone));
        for nod in ["go on", "Yes, please do.", "", "ok"] {
            assert_eq!(asked_by(nod), None, "{nod}");
        }
        assert_eq!(cue_of(&[]), None);
        assert_eq!(cue_of(&[r#"{"role":"assistant","content":"walnut"}"#]), None);
    }

    #[test]
    fn a_long_message_is_asked_for_by_its_questions() {
        let text = format!("Look at the log. {} Why is the quota exceeded? Thanks for helping.", "noise. ".repeat(200));
        let (query, _) = asked_by(&text).unwrap();
        assert!(query.contains("quota exceeded?") && query.contains("log.") && query.len() < 200, "{query}");
    }

    #[test]
    fn trouble_is_asked_for_by_the_names_in_it() {
        let call = |path: &str| {
            let arguments = serde_json::json!({"path": path, "old_string": "a", "new_string": "b"}).to_string();
            let call = serde_json::json!({"id": "a", "type": "function", "function": {"name": "edit", "arguments": arguments}});
            serde_json::json!({"role": "assistant", "content": "", "tool_calls": [call]}).to_string()
        };
        let result = |text: &str| serde_json::json!({"role": "tool", "tool_call_id": "a", "content": text}).to_string();
        let of = |path: &str, text: &str| cue_of(&[&call(path), &result(text)]);
        let traceback = "Traceback (most recent call last):\n  File \"src/app/store.py\", line 12, in load_rows\n    x()\n\
                         KeyError: 'user_id'\n";
        let cue = of("x", traceback).unwrap();
        assert!(cue.of == Of::Trouble && cue.query.contains("src/app/store.py"), "{cue:?}");
        let failed = of("src/lib/part.rs", "Error: old_string was not found in the file").unwrap();
        assert!(failed.query.contains("src/lib/part.rs"), "{failed:?}");
        assert_eq!(of("src/lib/part.rs", "The file was changed."), None);
    }
}
