//! A vocabulary, held by llama.cpp.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::OnceLock;

use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;
use llama_cpp_2::vocab::LlamaVocab;
use lru::LruCache;
use parking_lot::Mutex;

use super::VocabularyError;
use super::header::{self, Header, HeaderError};
use super::pieces::{Cuts, Special, c_space};
use super::soft::{self, Soft};
use crate::conversation::{Digest, Tokens};

/// Pieces whose counts are kept: 40 bytes each.
const REMEMBERED: usize = 1 << 16;

/// Pieces shorter than this are counted again rather than looked up.
const WORTH_REMEMBERING: usize = 64;

/// Bytes of a piece that is cut further where the vocabulary allows.
const CHUNK: usize = 2048;

/// Bytes of the parts of a text that are looked up as words are.
const WORD: usize = 24;

/// Words whose counts are kept: about a hundred bytes each.
const WORDS: usize = 1 << 16;

/// Bytes below which a piece that ends with a word of texts is not counted apart: llama.cpp looks for all its special
/// tokens in each.
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
    /// SentencePiece without any word that holds a line break: tokens the space put before a text takes. Such a
    /// vocabulary may be counted line by line.
    lines: Option<Tokens>,
    /// Special tokens that swallow the white space behind them.
    swallow: Vec<String>,
    /// Where pieces may be cut further.
    soft: Soft,
    /// Tokens of short parts.
    words: Mutex<HashMap<Box<str>, Tokens>>,
    bos: String,
    eos: String,
    enders: Vec<String>,
    counted: Mutex<LruCache<Digest, Tokens>>,
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
        let backend = backend().ok_or_else(|| broken("llama.cpp does not start".into()))?;
        if path.to_str().is_none() {
            return Err(broken("its name is not UTF-8".into()));
        }
        let params = LlamaModelParams::default().with_vocab_only(true);
        let model = LlamaModel::load_from_file(backend, path, &params)
            .map_err(|_| broken("llama.cpp cannot read it (cut short, or newer than this build)".into()))?;
        let vocab = model.vocab();
        let specials = specials(&vocab);
        let cuts = Cuts::new(&specials);
        let swallow = specials.iter().filter(|s| s.strips_right).map(|s| s.text.clone()).collect();
        let lines = by_lines(&vocab, &header, &specials);
        let soft = Soft::of(&header.tokenizer, &header.pre, &specials);
        let (bos, eos) = (piece(&vocab, vocab.bos()), piece(&vocab, vocab.eos()));
        let enders =
            vocab.tokens().filter(|t| vocab.is_eog(*t)).map(|t| piece(&vocab, t)).filter(|t| !t.is_empty()).collect();
        let counted = Mutex::new(LruCache::new(NonZeroUsize::new(REMEMBERED).expect("not zero")));
        Ok(Vocabulary { cuts, lines, swallow, soft, words: Mutex::default(), bos, eos, enders, counted, header, model })
    }

    /// The tokens of a prompt, as llama-server counts them: its own special tokens are read as such wherever they stand,
    /// and the first token is added where the model wants it. What was counted before costs next to nothing.
    pub fn count(&self, text: &str) -> Tokens {
        self.pieces(text).iter().fold(0, |sum, (_, tokens)| sum.saturating_add(*tokens))
    }

    /// The prompt in pieces that are counted apart: where each ends, and its tokens. What the tokenizer adds of its own
    /// belongs to the first. A text has at least one piece.
    pub fn pieces(&self, text: &str) -> Vec<(usize, Tokens)> {
        let vocab = self.model.vocab();
        let mut added = Tokens::try_from(vocab.tokenize(b"", true, true).len()).unwrap_or(0);
        let mut from = 0;
        let mut out = Vec::new();
        for end in self.cuts.ends(text, LEAST) {
            // A long piece is remembered in parts, so that one that grows at its end costs its new part.
            while end - from > 2 * CHUNK
                && let Some(at) = self.soft_cut(text.as_bytes(), from, end)
            {
                out.push((at, self.piece(&vocab, &text[from..at]) + std::mem::take(&mut added)));
                from = at;
            }
            let tokens = self.piece(&vocab, &text[from..end]);
            out.push((end, tokens + std::mem::take(&mut added)));
            from = end;
        }
        out
    }

    /// The end of a part of a long piece: at a line's beginning, or a word's.
    fn soft_cut(&self, bytes: &[u8], from: usize, end: usize) -> Option<usize> {
        let lines = if self.soft == Soft::None { Soft::None } else { Soft::Lines };
        let at = |soft: Soft| soft.next(&bytes[..end], from + CHUNK).filter(|at| *at < end);
        at(lines).filter(|at| at - from < 4 * CHUNK).or_else(|| at(self.soft))
    }

    /// The tokens of a part of a prompt, without what the tokenizer adds to a whole one.
    pub fn part(&self, text: &str) -> Tokens {
        let vocab = self.model.vocab();
        let mut from = 0;
        let mut piece = |end: usize| self.piece(&vocab, &text[std::mem::replace(&mut from, end)..end]);
        self.cuts.ends(text, LEAST).fold(0, |sum, end| sum.saturating_add(piece(end)))
    }

    /// The texts of the tokens that end a turn or a text.
    pub fn enders(&self) -> &[String] {
        &self.enders
    }

    /// The tokens of a prompt, the whole in one go: what [`Vocabulary::count`] must come to.
    pub fn tokenize(&self, text: &str) -> Vec<i32> {
        tokens(&self.model.vocab(), text, true).into_iter().map(|t| t.0).collect()
    }

    fn piece(&self, vocab: &LlamaVocab<'_>, text: &str) -> Tokens {
        if text.len() < WORTH_REMEMBERING {
            return tokens(vocab, text, false).len() as Tokens;
        }
        let digest = Digest::of(text.as_bytes());
        if let Some(known) = self.counted.lock().get(&digest) {
            return *known;
        }
        let counted = match self.lines {
            Some(prefix) if text.len() > 2 * CHUNK => self.chunks(vocab, text, prefix),
            _ if self.soft == Soft::Words && soft::is_quick(&self.header.pre) => self.by_words(vocab, text),
            _ => Tokens::try_from(tokens(vocab, text, false).len()).unwrap_or(Tokens::MAX),
        };
        self.counted.lock().put(digest, counted);
        counted
    }

    /// Counts word by word, of which most are known.
    fn by_words(&self, vocab: &LlamaVocab<'_>, text: &str) -> Tokens {
        let mut total: Tokens = 0;
        let mut from = 0;
        while from < text.len() {
            let end = self.soft.next(text.as_bytes(), from).unwrap_or(text.len());
            let part = &text[from..end];
            from = end;
            if part.len() > WORD {
                total = total.saturating_add(Tokens::try_from(tokens(vocab, part, false).len()).unwrap_or(Tokens::MAX));
                continue;
            }
            let known = self.words.lock().get(part).copied();
            let counted = known.unwrap_or_else(|| {
                let counted = tokens(vocab, part, false).len() as Tokens;
                let mut words = self.words.lock();
                if words.len() >= WORDS {
                    words.clear();
                }
                words.insert(part.into(), counted);
                counted
            });
            total = total.saturating_add(counted);
        }
        total
    }

    /// Counts from line break to line break, each begun with one: llama.cpp takes time by the square for bytes in a row
    /// that are no words of the vocabulary.
    fn chunks(&self, vocab: &LlamaVocab<'_>, text: &str, prefix: Tokens) -> Tokens {
        let mut total: Tokens = 0;
        let mut from = 0;
        while from < text.len() {
            let end = self.line_break(text, from + CHUNK);
            let counted = Tokens::try_from(tokens(vocab, &text[from..end], false).len()).unwrap_or(Tokens::MAX);
            total = total.saturating_add(if from == 0 { counted } else { counted.saturating_sub(prefix) });
            from = end;
        }
        total
    }

    /// The first line break at or behind `near` that no special token before it swallows; the end where there is none.
    fn line_break(&self, text: &str, near: usize) -> usize {
        let breaks = memchr::memchr_iter(b'\n', text.as_bytes().get(near..).unwrap_or_default()).map(|at| near + at);
        let swallowed = |at: &usize| {
            let before = text[..*at].trim_end_matches(|c: char| u8::try_from(c).is_ok_and(c_space));
            self.swallow.iter().any(|special| before.ends_with(special.as_str()))
        };
        breaks.into_iter().find(|at| !swallowed(at)).unwrap_or(text.len())
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

/// What [`Vocabulary::lines`] says. A line break that is in no word is never joined with its neighbors, so that a text may
/// be cut before it; nor may a special token hold one, or swallow it from far.
fn by_lines(vocab: &LlamaVocab<'_>, header: &Header, specials: &[Special]) -> Option<Tokens> {
    let alone = header.tokenizer == "llama"
        && vocab
            .tokens()
            .all(|t| vocab.text(t).is_none_or(|w| w.to_bytes() == b"\n" || !w.to_bytes().contains(&b'\n')))
        && specials.iter().all(|s| !s.text.contains('\n') && !s.strips_left);
    let count = |text: &[u8]| vocab.tokenize(text, false, true).len();
    alone.then(|| Tokens::try_from((2 * count(b"\n")).saturating_sub(count(b"\n\n"))).unwrap_or(0))
}

/// llama.cpp, started once and silent.
fn backend() -> Option<&'static LlamaBackend> {
    static BACKEND: OnceLock<Option<LlamaBackend>> = OnceLock::new();
    BACKEND
        .get_or_init(|| {
            let mut backend = LlamaBackend::init().ok()?;
            backend.void_logs();
            Some(backend)
        })
        .as_ref()
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
