//! Full-text search: which words are indexed, what a query becomes, and the snippet around a match.
//!
//! The index holds words and positions only; texts are read back from their rows. A long text is indexed in pieces, so
//! that a match has a place and the index needs little RAM.

use std::borrow::Cow;
use std::collections::HashSet;

use regex::{Regex, RegexBuilder};
use rusqlite::{Connection, OptionalExtension, params};

use super::history::plain;
use super::large::text;
use super::read::LINE;
use super::types::Hit;
use windowsill_core::conversation::Digest;

/// Longest piece of a text that is indexed as one, in bytes.
const PIECE: usize = 64 << 10;

/// Bits of a row id that say which piece of which table: 19 for the piece, 1 for the table.
const PIECE_BITS: u32 = 20;

/// Longest query, in characters, and most words of it that count.
const QUERY_CHARS: usize = 1000;
const QUERY_WORDS: usize = 64;

/// Matches of the phrase that are looked at for those that hold the query letter by letter.
const LITERAL: usize = 200;

/// Bytes of text shown before and after the start of a match.
const BEFORE: usize = 80;
const AFTER: usize = 200;

/// Matches of the question `?1`, the best first. Of very many, the newest are ranked: a word that stands everywhere finds
/// nothing by its rank.
const EVERYWHERE: &str = "SELECT id FROM (SELECT rowid AS id, bm25(words) AS worth FROM words
        WHERE words MATCH ?1 AND ?2 IS NULL ORDER BY rowid DESC LIMIT 5000)
    ORDER BY worth";

/// The same, in one conversation and what it forked from; the number of bits is [`PIECE_BITS`]. What belongs to it is listed
/// first: it is little, and the matches may be many.
const SCOPED: &str = ", mine(source) AS MATERIALIZED (
        SELECT n.id << 1 FROM line l JOIN node n ON n.conversation = l.id AND n.depth <= l.upto
        UNION ALL
        SELECT (o.original << 1) | 1 FROM line l JOIN original_link o ON o.conversation = l.id AND o.at < l.upto
    )
    SELECT id FROM (SELECT words.rowid AS id, bm25(words) AS worth FROM words
        WHERE words MATCH ?1 AND ((words.rowid >> 20) << 1 | (words.rowid & 1)) IN (SELECT source FROM mine)
        ORDER BY words.rowid DESC LIMIT 5000)
    ORDER BY worth";

/// The row that an index entry stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// A message.
    Node(i64),
    /// An original.
    Original(i64),
}

impl Source {
    /// Row id in the index; `None` past the last piece that has a number (32 GiB of text).
    pub(super) fn rowid(self, piece: usize) -> Option<i64> {
        let piece = i64::try_from(piece).ok().filter(|p| *p < 1 << (PIECE_BITS - 1))?;
        let (id, table) = match self {
            Source::Node(id) => (id, 0),
            Source::Original(id) => (id, 1),
        };
        Some(id << PIECE_BITS | piece << 1 | table)
    }

    fn from_rowid(rowid: i64) -> (Source, usize) {
        let id = rowid >> PIECE_BITS;
        let piece = usize::try_from((rowid >> 1) & ((1 << (PIECE_BITS - 1)) - 1)).unwrap_or(0);
        (if rowid & 1 == 0 { Source::Node(id) } else { Source::Original(id) }, piece)
    }
}

/// Cuts a text into pieces of at most [`PIECE`] bytes, at line ends where there are any.
pub(super) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut end = rest.len().min(PIECE);
        if end < rest.len() {
            end = boundary(rest, end);
            end = rest[..end].rfind('\n').map_or(end, |i| if i > PIECE / 2 { i + 1 } else { end });
        }
        let (piece, tail) = rest.split_at(end);
        rest = tail;
        Some(piece)
    })
}

/// Sets the characters of scripts without spaces apart (Chinese, Japanese, Thai, Lao, Burmese, Khmer), so that each is a
/// word and a run of them a phrase.
pub(super) fn spaced(text: &str) -> Cow<'_, str> {
    let spaceless = |c: char| {
        matches!(c, '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'
            | '\u{3040}'..='\u{30ff}' | '\u{31f0}'..='\u{31ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}'
            | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ff9f}' | '\u{20000}'..='\u{323af}')
    };
    // SQLite reads a query up to the first NUL.
    if text.is_ascii() && !text.contains('\0') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() * 4 / 3);
    for c in text.chars() {
        match c {
            '\0' => out.push(' '),
            c if spaceless(c) => {
                out.push(' ');
                out.push(c);
                out.push(' ');
            }
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// What to ask the index, the best first: the phrase, all words (those in quotes as phrases), all words as beginnings, any
/// word. The flag says that a match is the whole phrase. Every word is quoted, so nothing in a query is syntax.
fn questions(query: &str) -> Vec<(String, bool)> {
    let short: String = query.chars().take(QUERY_CHARS).collect();
    let short = spaced(&short);
    let counts = |w: &&str| w.chars().any(char::is_alphanumeric);
    // What stands in quotes is every second part, unless the last quote is missing.
    let parts: Vec<&str> = short.split('"').collect();
    let mut phrases = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let inside = i % 2 == 1 && i + 1 < parts.len();
        let words: Vec<&str> = part.split_whitespace().filter(counts).collect();
        if inside && !words.is_empty() {
            phrases.push(words.join(" "));
        } else {
            phrases.extend(words.into_iter().map(str::to_owned));
        }
    }
    let all: Vec<&str> = phrases.iter().flat_map(|p| p.split(' ')).take(QUERY_WORDS).collect();
    if all.is_empty() {
        return Vec::new();
    }
    let quoted = |words: &mut dyn Iterator<Item = &str>| words.map(|w| format!("\"{w}\"")).collect::<Vec<_>>();
    let words = quoted(&mut all.iter().copied());
    let begin: Vec<String> = words.iter().map(|w| format!("{w}*")).collect();
    let mut asked = vec![(format!("\"{}\"", all.join(" ")), true)];
    if phrases.len() > 1 {
        asked.push((quoted(&mut phrases.iter().map(String::as_str).take(QUERY_WORDS)).join(" AND "), false));
    }
    if all.len() > 1 && phrases.len() < all.len() {
        asked.push((words.join(" AND "), false));
    }
    asked.push((begin.join(" AND "), false));
    if all.len() > 1 {
        asked.push((words.join(" OR "), false));
    }
    asked
}

/// Finds a query in originals and messages; in one conversation and what it forked from, or everywhere. Where the query
/// stands letter by letter comes first, then where its words follow each other.
pub(super) fn search(
    conn: &Connection,
    query: &str,
    conversation: Option<&str>,
    limit: usize,
) -> rusqlite::Result<Vec<Hit>> {
    let sql = if conversation.is_some() { format!("{LINE} {SCOPED}") } else { EVERYWHERE.to_owned() };
    let mut hits = Vec::new();
    let mut seen = HashSet::new();
    let mut places = HashSet::new();
    let finder = Finder::of(query);
    for (question, exact) in questions(query) {
        let mut statement = conn.prepare_cached(&sql)?;
        let mut rows = statement.query(params![question, conversation])?;
        let most = if exact { limit.max(LITERAL) } else { limit };
        let mut literal = 0;
        while hits.len() < most && literal < limit {
            let Some(row) = rows.next()? else { break };
            let (source, piece) = Source::from_rowid(row.get(0)?);
            if !seen.insert(source) {
                continue;
            }
            let found = match source {
                Source::Node(id) => message_hit(conn, id, &finder, exact)?,
                Source::Original(id) => original_hit(conn, id, piece, conversation, &finder, exact)?,
            };
            // A message and the original made of it are one hit, with the original's id.
            let Some((hit, stands)) = found else { continue };
            if places.insert((hit.conversation.clone(), hit.at, hit.id.clone())) {
                // Ranked among their like, the literal ones before the others.
                let to = if exact && stands { literal } else { hits.len() };
                literal += usize::from(exact && stands);
                hits.insert(to, hit);
            }
        }
        hits.truncate(limit);
    }
    Ok(hits)
}

/// A message that matches, and whether it holds the query letter by letter.
fn message_hit(conn: &Connection, id: i64, finder: &Finder, exact: bool) -> rusqlite::Result<Option<(Hit, bool)>> {
    let sql = "SELECT c.name, n.depth - 1, n.role, n.raw, o.name, l.kind, l.call, n.digest
        FROM node n JOIN conversation c ON c.id = n.conversation
        LEFT JOIN original_link l ON l.conversation = n.conversation AND l.at = n.depth - 1
            AND l.kind IN ('tool_result', 'message')
        LEFT JOIN original o ON o.id = l.original
        WHERE n.id = ?1 LIMIT 1";
    let hit = |r: &rusqlite::Row<'_>| {
        let raw: Vec<u8> = r.get(3)?;
        let role: String = r.get(2)?;
        let kind: Option<String> = r.get(5)?;
        let (snippet, literal) = finder.snippet(&plain(&raw));
        let hit = Hit {
            id: r.get(4)?,
            conversation: r.get(0)?,
            at: r.get(1)?,
            kind: kind.unwrap_or(role),
            call: r.get(6)?,
            snippet,
            exact,
            digest: Some(Digest(r.get(7)?)),
        };
        Ok((hit, literal))
    };
    conn.prepare_cached(sql)?.query_row([id], hit).optional()
}

/// An original that matches, as the conversation asked about (or one it forked from) recorded it; never another's call.
fn original_hit(
    conn: &Connection,
    id: i64,
    piece: usize,
    conversation: Option<&str>,
    finder: &Finder,
    exact: bool,
) -> rusqlite::Result<Option<(Hit, bool)>> {
    const COLUMNS: &str = concat!(
        "SELECT o.name, c.name, l.at, l.kind, l.call, ",
        text!(),
        "
        FROM original o JOIN original_link l ON l.original = o.id JOIN conversation c ON c.id = l.conversation"
    );
    let sql = match conversation {
        Some(_) => format!(
            "{LINE} {COLUMNS} JOIN line ON line.id = l.conversation AND l.at < line.upto
            WHERE o.id = ?1 ORDER BY c.name = ?2 DESC, c.id LIMIT 1"
        ),
        None => format!("{COLUMNS} WHERE o.id = ?1 AND ?2 IS NULL ORDER BY c.id LIMIT 1"),
    };
    let hit = |r: &rusqlite::Row<'_>| {
        let text = r.get_ref(5)?.as_str()?;
        let (snippet, literal) = finder.snippet(pieces(text).nth(piece).unwrap_or_default());
        let hit = Hit {
            id: r.get(0)?,
            conversation: r.get(1)?,
            at: r.get(2)?,
            kind: r.get(3)?,
            call: r.get(4)?,
            snippet,
            exact,
            digest: None,
        };
        Ok((hit, literal))
    };
    conn.prepare_cached(&sql)?.query_row(params![id, conversation], hit).optional()
}

/// Finds a query in a text: as it is written, else its words in a row, else any of them.
struct Finder {
    literal: Option<Regex>,
    words: Option<Regex>,
}

impl Finder {
    fn of(query: &str) -> Finder {
        let short: String = query.chars().take(QUERY_CHARS).collect();
        let build = |pattern: &str| RegexBuilder::new(pattern).case_insensitive(true).size_limit(4 << 20).build().ok();
        let as_written: Vec<String> = short.split_whitespace().map(regex::escape).collect();
        let words: Vec<String> = short
            .split(|c: char| !c.is_alphanumeric())
            .filter(|w| !w.is_empty())
            .take(QUERY_WORDS)
            .map(regex::escape)
            .collect();
        if words.is_empty() {
            return Finder { literal: None, words: None };
        }
        let any = format!(r"{}|\b(?:{})", words.join(r"[^\p{L}\p{N}]+"), words.join("|"));
        Finder { literal: build(&as_written.join(r"\s+")), words: build(&any) }
    }

    /// The text around the first match, its white space collapsed; and whether the query stands there as it is written.
    fn snippet(&self, text: &str) -> (String, bool) {
        let first = |finder: &Option<Regex>| finder.as_ref().and_then(|f| f.find(text)).map(|m| m.start());
        let literal = first(&self.literal);
        let at = literal.or_else(|| first(&self.words)).unwrap_or(0);
        let from = boundary(text, at.saturating_sub(BEFORE));
        let to = boundary(text, at + AFTER);
        let mut out = text[from..to].split_whitespace().collect::<Vec<_>>().join(" ");
        if from > 0 {
            out.insert(0, '…');
        }
        if to < text.len() {
            out.push('…');
        }
        (out, literal.is_some())
    }
}

/// The last character boundary at or before a byte position.
fn boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
