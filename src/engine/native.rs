//! A vocabulary, held by llama.cpp.

use std::borrow::Cow;
use std::path::Path;
use std::sync::OnceLock;

use aho_corasick::AhoCorasick;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;
use llama_cpp_2::vocab::LlamaVocab;
use parking_lot::Mutex;

use super::VocabularyError;
use super::header::{self, Header, HeaderError};
use super::pieces::{Cuts, Special};
use super::soft::{Borders, Rule, SPACE};
use super::sound::unescaped;
use super::tally::{self, Memory, Part};
use super::words::{Lexicon, space_sign};
use crate::conversation::Tokens;

/// Bytes of a piece that is cut further where the vocabulary allows.
const CHUNK: usize = 2048;

/// Bytes below which a piece that ends with a word of texts is told together with what follows.
const LEAST: usize = 1024;

/// llama.cpp's regular expressions recurse once a character on some texts; this is enough for the longest.
const STACK: usize = 1 << 30;

/// Texts from here on are tokenized on a stack of their own.
const DEEP: usize = 8 * 1024;

/// The vocabulary of a model.
pub struct Vocabulary {
    model: LlamaModel,
    header: Header,
    cuts: Cuts,
    /// What its texts are counted by, word by word.
    pub(super) lexicon: Option<Lexicon>,
    memory: Mutex<Memory>,
    bos: String,
    eos: String,
    enders: Vec<String>,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary")
            .field("architecture", &self.header.architecture)
            .field("tokenizer", &self.header.tokenizer)
            .finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Reads the vocabulary of a GGUF file; the weights stay where they are. Takes up to a second, so not on a thread
    /// that others wait for.
    ///
    /// # Errors
    /// When the file cannot be read, is no GGUF with a vocabulary, or holds what llama.cpp would not survive.
    pub fn load(path: &Path) -> Result<Vocabulary, VocabularyError> {
        super::FileId::of(path)?;
        let broken = |what: String| VocabularyError::Broken { path: path.to_owned(), what };
        let header = header::read(path).map_err(|e| match e {
            HeaderError::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                broken("it is cut short".into())
            }
            HeaderError::Io(error) => VocabularyError::Unreadable { path: path.to_owned(), error },
            HeaderError::Bad(what) => broken(what),
        })?;
        let backend = backend();
        if path.to_str().is_none() {
            return Err(broken("its name is not UTF-8".into()));
        }
        // Without GPUs: looking at one takes some of its memory for as long as this process lives.
        let params = LlamaModelParams::default().with_vocab_only(true).with_devices(&[]);
        let params = params.map_err(|e| broken(e.to_string()))?;
        let model = LlamaModel::load_from_file(backend, path, &params)
            .map_err(|_| broken("llama.cpp cannot read it (cut short, or newer than this build)".into()))?;
        let vocab = model.vocab();
        if let Some(name) = wanting(&vocab, &header.tokenizer) {
            return Err(broken(format!("a {name} token is to be added, and there is none")));
        }
        let specials = specials(&vocab);
        let cuts = Cuts::new(&specials);
        let lexicon = lexicon(&vocab, &header, &specials, &cuts);
        let (bos, eos) = (piece(&vocab, vocab.bos()), piece(&vocab, vocab.eos()));
        let enders =
            vocab.tokens().filter(|t| vocab.is_eog(*t)).map(|t| piece(&vocab, t)).filter(|t| !t.is_empty()).collect();
        Ok(Vocabulary { cuts, lexicon, memory: Mutex::default(), bos, eos, enders, header, model })
    }

    /// The tokens of a prompt, as llama-server counts them: its own special tokens are read as such wherever they stand,
    /// and the first token is added where the model wants it. What was counted before costs next to nothing.
    pub fn count(&self, text: &str) -> Tokens {
        self.pieces(text).iter().fold(0, |sum, (_, tokens)| sum.saturating_add(*tokens))
    }

    /// The prompt in pieces that are counted apart: where each ends, and its tokens. What the tokenizer adds of its own
    /// belongs to the first. A text has at least one piece.
    pub fn pieces(&self, text: &str) -> Vec<(usize, Tokens)> {
        let mut from = 0;
        let mut tokens = Tokens::try_from(self.model.vocab().tokenize(b"", true, true).len()).unwrap_or(0);
        let mut out = Vec::new();
        for (end, told, n) in self.counted(text) {
            tokens = tokens.saturating_add(n);
            if (told || end - from >= LEAST) && (end > from || out.is_empty()) {
                out.push((end, std::mem::take(&mut tokens)));
                from = end;
            }
        }
        out
    }

    /// The tokens of a part of a prompt, without what the tokenizer adds to a whole one.
    pub fn part(&self, text: &str) -> Tokens {
        self.counted(text).iter().fold(0, |sum, (_, _, tokens)| sum.saturating_add(*tokens))
    }

    /// The parts of a text: where each ends, whether what stands there parts texts, and its tokens.
    fn counted(&self, text: &str) -> Vec<(usize, bool, Tokens)> {
        let mut parts: Vec<Part<'_>> = Vec::new();
        let mut out: Vec<(usize, bool, Tokens)> = Vec::new();
        let mut from = 0;
        for piece in self.cuts.pieces(text) {
            let lexicon = self.lexicon.as_ref().filter(|l| l.takes(&text[from..piece.words]));
            let mut begins = true;
            // A long piece is remembered in parts, so that one that grows at its end costs its new part.
            while let Some(lexicon) = lexicon.filter(|_| piece.words - from > 2 * CHUNK)
                && let Some(at) = lexicon.borders.next(&text.as_bytes()[..piece.words], from + CHUNK)
            {
                parts.push(Part { text: &text[from..at], begins, by_words: true });
                out.push((at, true, 0));
                (from, begins) = (at, false);
            }
            parts.push(Part { text: &text[from..piece.words], begins, by_words: lexicon.is_some() });
            out.push((piece.end, piece.control, Tokens::from(piece.special)));
            from = piece.end;
        }
        let vocab = self.model.vocab();
        let tokenize = |text: &str| tokens(&vocab, text, false).into_iter().map(|t| t.0).collect();
        let counts = tally::count(&parts, self.lexicon.as_ref(), &self.memory, &tokenize);
        out.iter_mut().zip(counts).for_each(|(part, tokens)| part.2 = part.2.saturating_add(tokens));
        out
    }

    /// The texts of the tokens that end a turn or a text.
    pub fn enders(&self) -> &[String] {
        &self.enders
    }

    /// The tokens of a prompt, the whole in one go: what [`Vocabulary::count`] must come to.
    pub fn tokenize(&self, text: &str) -> Vec<i32> {
        tokens(&self.model.vocab(), text, true).into_iter().map(|t| t.0).collect()
    }

    /// The model's chat template.
    pub fn chat_template(&self) -> Option<&str> {
        self.header.template.as_deref()
    }

    /// The model's chat template for requests with tools, where it has one of its own for them.
    pub fn tool_template(&self) -> Option<&str> {
        self.header.tool_template.as_deref()
    }

    /// The text of the token that begins a prompt.
    pub fn bos(&self) -> &str {
        &self.bos
    }

    /// The text of the token that ends a turn.
    pub fn eos(&self) -> &str {
        &self.eos
    }

    /// Whether the tokenizer puts the first token there itself.
    pub fn adds_bos(&self) -> bool {
        self.model.vocab().should_add_bos()
    }

    /// Whether the tokenizer puts the last token there itself.
    pub fn adds_eos(&self) -> bool {
        self.model.vocab().should_add_eos()
    }
}

/// A token that a prompt is to begin or end with, and that is not there: llama.cpp ends the process over it.
fn wanting(vocab: &LlamaVocab<'_>, tokenizer: &str) -> Option<&'static str> {
    // The kind of BERT begins and ends every text, whatever its file says.
    let always = tokenizer == "bert";
    let wanted = [
        (always || vocab.should_add_bos(), vocab.bos(), "bos"),
        (vocab.should_add_eos(), vocab.eos(), "eos"),
        (always, vocab.sep(), "sep"),
    ];
    wanted.into_iter().find(|(wanted, token, _)| *wanted && token.0 < 0).map(|(_, _, name)| name)
}

/// What the texts of a vocabulary are counted by; `None` where nothing is known of where they may be cut.
fn lexicon(vocab: &LlamaVocab<'_>, header: &Header, specials: &[Special], cuts: &Cuts) -> Option<Lexicon> {
    let rule = Rule::of(&header.tokenizer, &header.pre)?;
    let spelling = match (header.tokenizer.as_str(), rule) {
        ("rwkv", _) => Spelling::Escaped,
        (_, Rule::Runs { .. }) => Spelling::BytesAsLetters,
        (_, Rule::Words) => Spelling::Plain,
    };
    let words = vocab.tokens().filter_map(|t| vocab.text(t)).map(|t| match spelling {
        Spelling::Escaped => Cow::Owned(String::from_utf8_lossy(&unescaped(t.to_bytes())).into_owned()),
        _ => t.to_string_lossy(),
    });
    let borders = Borders::of(rule, words, &header.joints, specials)?;
    let lengths = vocab.tokens().map(|t| length(vocab, t, spelling)).collect();
    let mut out = Lexicon::new(borders, lengths);
    let count = |text: &str| vocab.tokenize(text.as_bytes(), false, true);
    out.prefix = header.tokenizer == "llama" && header.space_prefix;
    // With the space that is put before it, a text might begin with such a token, which is not so.
    if out.prefix && specials.iter().any(|s| s.text.starts_with(' ')) {
        return None;
    }
    let divider = |text: &str| match count(text)[..] {
        [one] => Some((text.to_owned(), one.0)),
        _ => None,
    };
    out.divider = cuts.divider().and_then(divider);
    let texts = |which: &dyn Fn(&Special) -> bool| {
        let texts: Vec<&str> = specials.iter().filter(|s| which(s)).map(|s| s.text.as_str()).collect();
        (!texts.is_empty()).then(|| AhoCorasick::new(texts)).transpose()
    };
    let strips = specials.iter().any(|s| s.strips_left || s.strips_right);
    out.apart = texts(&|s| !s.text.is_empty() && (strips || out.prefix)).ok()?;
    out.unmeasured = match spelling {
        Spelling::BytesAsLetters => texts(&|s| !s.text.is_empty() && !s.text.is_ascii()).ok()?,
        Spelling::Plain => space_sign(),
        Spelling::Escaped => None,
    };
    Some(out)
}

/// How words stand in a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// As they are, but for a sign that stands for the space.
    Plain,
    /// A letter for each byte.
    BytesAsLetters,
    /// With escapes (RWKV).
    Escaped,
}

/// The bytes of text that a token stands for, where it is no special token that holds what its words have for a space;
/// none where that depends on the text.
fn length(vocab: &LlamaVocab<'_>, token: LlamaToken, spelling: Spelling) -> u32 {
    let attr = vocab.attr(token);
    let Some(word) = vocab.text(token) else { return 0 };
    let text = word.to_string_lossy();
    let special = attr.intersects(LlamaTokenAttr::Control | LlamaTokenAttr::UserDefined | LlamaTokenAttr::Unknown);
    let bytes = match spelling {
        // These may stand for themselves as well as for what they spell.
        Spelling::Escaped if special && word.to_bytes().contains(&b'\\') => 0,
        Spelling::Escaped => unescaped(word.to_bytes()).len(),
        _ if attr.contains(LlamaTokenAttr::Byte) => usize::from(names_a_byte(&text)),
        Spelling::Plain if names_a_byte(&text) => 0,
        Spelling::BytesAsLetters if !special => text.chars().count(),
        _ => text.len() - text.matches(SPACE).count() * (SPACE.len_utf8() - 1),
    };
    u32::try_from(bytes).unwrap_or(0)
}

/// Whether a word is spelled as one for a byte is: `<0x41>`.
fn names_a_byte(word: &str) -> bool {
    let digits = word.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// llama.cpp, made silent once. `llama_backend_init` is not called: all that it does beyond what loading a vocabulary does by
/// itself is to start the drivers of GPUs, which take some of their memory for as long as this process lives.
pub(super) fn backend() -> &'static LlamaBackend {
    static BACKEND: OnceLock<LlamaBackend> = OnceLock::new();
    BACKEND.get_or_init(|| {
        let mut backend = LlamaBackend {};
        backend.void_logs();
        backend
    })
}

fn specials(vocab: &LlamaVocab<'_>) -> Vec<Special> {
    let mut out = Vec::new();
    for token in vocab.tokens() {
        let attr = vocab.attr(token);
        if !attr.intersects(LlamaTokenAttr::Control | LlamaTokenAttr::UserDefined | LlamaTokenAttr::Unknown) {
            continue;
        }
        let text = vocab.text(token).map(|t| t.to_string_lossy().into_owned()).unwrap_or_default();
        out.push(Special {
            text,
            strips_left: attr.contains(LlamaTokenAttr::LStrip),
            strips_right: attr.contains(LlamaTokenAttr::RStrip),
            control: attr.contains(LlamaTokenAttr::Control),
        });
    }
    out
}

fn piece(vocab: &LlamaVocab<'_>, token: LlamaToken) -> String {
    if token.0 < 0 || token.0 >= vocab.n_tokens() {
        return String::new();
    }
    vocab.text(token).map(|t| t.to_string_lossy().into_owned()).unwrap_or_default()
}

fn tokens(vocab: &LlamaVocab<'_>, text: &str, add_special: bool) -> Vec<LlamaToken> {
    let work = || vocab.tokenize(text.as_bytes(), add_special, true);
    if text.len() < DEEP {
        return work();
    }
    // The stack is reserved, not filled: it costs what is used of it.
    std::thread::scope(|scope| match std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work) {
        Ok(thread) => thread.join().unwrap_or_default(),
        Err(_) => work(),
    })
}
