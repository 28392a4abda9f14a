//! Search: which passages a query looks at, what they say, and what stands beside them. How well each fits is for
//! [`windowsill_core::passage`] to say.
//!
//! The index gives the passages that hold a word, word by word; which of them hold many, and rare ones, is counted here. Of a word
//! that stands everywhere only the newest passages are looked at: it finds nothing by itself, and counts where others do.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use rusqlite::{Connection, OptionalExtension, params};

use super::large::text;
use super::passages::{self, Source};
use super::read::{self, LINE};
use super::types::{Hit, Passage};
use windowsill_core::conversation::{Digest, Text};
use windowsill_core::passage::{LONG, Looked, Query, columns, rarity, start};

/// Passages that are looked at for one word, and for all words together.
const FOR_ONE: usize = 3_000;
const FOR_ALL: usize = 40_000;

/// Of a word, where there are too many for all of them.
const FOR_LATE: usize = 300;

/// Matches of all words in a row that are looked at.
const IN_ROW: usize = 200;

/// How many more are read than are asked for: the rank by words alone is a first guess.
const MORE: usize = 60;

/// Most passages that are read for one search.
const MOST: usize = 1_000;

/// Passages of a message of which no more are looked at for neighbors on one side.
const BESIDE: i64 = 4;

/// Bytes of texts that are kept while one search reads.
const KEPT: usize = 8 << 20;

/// Where a search looks: the numbers of a conversation's passages, and the messages of it that count.
struct Range {
    first: i64,
    last: i64,
    upto: i64,
}

/// Passages that fit a query, the best first; in one conversation and what it forked from, or everywhere. `keep` says which may be
/// shown at all; it may take from one what its reader may not see.
pub(super) fn search(
    conn: &Connection,
    query: &str,
    conversation: Option<&str>,
    limit: usize,
    keep: &mut dyn FnMut(&mut Hit) -> bool,
) -> rusqlite::Result<Vec<Passage>> {
    // What retention takes meanwhile is still there for this search.
    let snapshot = conn.unchecked_transaction()?;
    let conn: &Connection = &snapshot;
    let mut query = Query::read(query);
    let ranges = ranges(conn, conversation)?;
    let line = match conversation.filter(|_| ranges.len() > 1) {
        None => HashSet::new(),
        Some(conversation) => read::path_rows(conn, conversation)?,
    };
    if query.is_empty() || limit == 0 || ranges.is_empty() {
        return Ok(Vec::new());
    }
    let limit = limit.min(MOST);
    let Candidates { ids, rarities } = candidates(conn, &mut query, &ranges, conversation.is_some())?;
    let mut reader = Reader { conn, query: &query, line, texts: HashMap::new(), kept: 0, seen: HashMap::new(), keep };
    let mut found: Vec<(i64, Passage)> = Vec::new();
    for id in ids {
        if found.len() >= limit + MORE {
            break;
        }
        let Some(range) = ranges.iter().find(|range| (range.first..=range.last).contains(&id)) else { continue };
        let Some(seen) = reader.passage(id, range.upto)? else { continue };
        let own = seen.looked.rank(&query, &rarities);
        let (said, center) = reader.beside(id, &seen, range.upto)?;
        let mut rank = own;
        if said.len() > 1 {
            let mut all = Looked::default();
            said.iter().for_each(|one| all.add(&one.looked));
            let all = all.rank(&query, &rarities);
            (rank.worth, rank.share) = (rank.worth.max(all.worth), rank.share.max(all.share));
            rank.words = rank.words.max(all.words);
        }
        let said = said.iter().map(|one| Hit { exact: own.exact > 0, ..one.hit.clone() }).collect();
        found.push((id, Passage { said, center, rank }));
    }
    found.sort_by(|(a, x), (b, y)| y.rank.partial_cmp(&x.rank).unwrap_or(std::cmp::Ordering::Equal).then(b.cmp(a)));
    // A message and the original made of it are one, unless the original fits better.
    let mut messages = HashSet::new();
    found.retain(|(_, one)| {
        let hit = &one.said[one.center];
        let place = (hit.conversation.clone(), hit.at, hit.id.clone());
        if hit.digest.is_none() {
            return !messages.contains(&place);
        }
        messages.insert(place);
        true
    });
    Ok(found.into_iter().take(limit).map(|(_, passage)| passage).collect())
}

/// Where to look. Nowhere, where there is no such conversation.
fn ranges(conn: &Connection, conversation: Option<&str>) -> rusqlite::Result<Vec<Range>> {
    if conversation.is_none() {
        return Ok(vec![Range { first: 0, last: i64::MAX, upto: i64::MAX }]);
    }
    let sql = format!("{LINE} SELECT id, max(upto) FROM line WHERE ?1 IS NULL GROUP BY id");
    let range = |r: &rusqlite::Row<'_>| {
        let (first, last) = passages::numbers(r.get(0)?);
        Ok(Range { first, last, upto: r.get(1)? })
    };
    conn.prepare_cached(&sql)?.query_map(params![None::<i64>, conversation], range)?.collect()
}

/// Passages to read, the most promising first, and how rare the words are.
struct Candidates {
    ids: Vec<i64>,
    rarities: Vec<f64>,
}

fn candidates(conn: &Connection, query: &mut Query, ranges: &[Range], scoped: bool) -> rusqlite::Result<Candidates> {
    let mut lists = Vec::with_capacity(query.units.len());
    let mut with = Vec::with_capacity(query.units.len());
    let mut left = FOR_ALL;
    for unit in &mut query.units {
        let most = if left > FOR_LATE { FOR_ONE.min(left) } else { FOR_LATE };
        let asked = format!("\"{}\"", unit.words);
        let mut list = match scoped && unit.words.contains(' ') {
            true => in_row(conn, &unit.words.split(' ').collect::<Vec<_>>(), ranges, most)?,
            false => matches(conn, &asked, ranges, most)?,
        };
        if list.is_empty() && unit.words.chars().count() > 2 && !(scoped && is_common(conn, &asked)?) {
            list = matches(conn, &format!("{asked}*"), ranges, most)?;
            unit.begins = !list.is_empty();
        }
        left = left.saturating_sub(list.len());
        // Of a word with more passages than are looked at, nobody knows how many.
        with.push(if list.len() < most { list.len() } else { FOR_ONE });
        lists.push(list);
    }
    // Where their number is unknown, the commonest word stands in about every second one.
    let all = size(conn, ranges, scoped)?.unwrap_or(with.iter().max().map_or(0, |most| most * 2));
    let rarities: Vec<f64> = with.iter().map(|with| rarity(*with, all)).collect();
    let mut pairs: Vec<(i64, usize)> =
        lists.iter().enumerate().flat_map(|(unit, list)| list.iter().map(move |id| (*id, unit))).collect();
    // Where every word stands everywhere, all of them together are looked for only where that is not long.
    let rare = lists.iter().map(Vec::len).filter(|n| *n > 0).min().is_some_and(|n| n < FOR_LATE);
    if query.row.len() > 1 && (scoped || rare) {
        let every = query.units.len();
        let all_there = query.units.iter().zip(&lists).all(|(unit, list)| !list.is_empty() && !unit.begins);
        let row = match scoped {
            true if all_there => in_row(conn, &query.row, ranges, IN_ROW)?,
            true => Vec::new(),
            false => matches(conn, &format!("\"{}\"", query.row.join(" ")), ranges, IN_ROW)?,
        };
        pairs.extend(row.into_iter().map(|id| (id, every)));
        let common = query.units.iter().zip(&lists).filter(|(_, list)| list.len() >= FOR_LATE).count();
        if common > 1 {
            let there = query.units.iter().zip(&lists).filter(|(_, list)| !list.is_empty());
            let and: Vec<String> = there.map(|(unit, _)| format!("\"{}\"", unit.words)).collect();
            pairs.extend(matches(conn, &and.join(" AND "), ranges, IN_ROW)?.into_iter().map(|id| (id, every + 1)));
        }
    }
    pairs.sort_unstable();
    pairs.dedup();
    let sum: f64 = rarities.iter().sum();
    // A row of all words is worth more than the words, and all words at least as much.
    let worth = |unit: usize| rarities.get(unit).copied().unwrap_or(sum);
    let mut scored: Vec<(f64, i64)> = pairs
        .chunk_by(|a, b| a.0 == b.0)
        .map(|chunk| (chunk.iter().map(|(_, unit)| worth(*unit)).sum(), chunk[0].0))
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
    Ok(Candidates { ids: scored.into_iter().map(|(_, id)| id).collect(), rarities })
}

/// The passages of a conversation that have these words in a row. Asked for a row, the index looks for the next one through the whole
/// record, however far the conversation's end is behind; asked for what has all the words and not in a row, it does not.
fn in_row<W: AsRef<str>>(conn: &Connection, row: &[W], ranges: &[Range], most: usize) -> rusqlite::Result<Vec<i64>> {
    let words: Vec<&str> = row.iter().map(AsRef::as_ref).collect();
    let all = format!("\"{}\"", words.join("\" AND \""));
    let with_all = matches(conn, &all, ranges, FOR_ONE)?;
    if with_all.is_empty() {
        return Ok(with_all);
    }
    let apart = matches(conn, &format!("({all}) NOT \"{}\"", words.join(" ")), ranges, with_all.len())?;
    let apart: HashSet<i64> = apart.into_iter().collect();
    Ok(with_all.into_iter().filter(|id| !apart.contains(id)).take(most).collect())
}

/// Whether a word that a conversation does not have stands in many passages of others: then it is a whole word, and no beginning of
/// one. The index puts the passages of all words that begin so together before it looks where they stand: of a common one that
/// takes longer than all else.
fn is_common(conn: &Connection, asked: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM (SELECT rowid FROM words WHERE words MATCH ?1 LIMIT ?2)";
    let many =
        conn.prepare_cached(sql)?.query_row(params![asked, read::bounded(FOR_LATE)], |r| r.get::<_, usize>(0))?;
    Ok(many >= FOR_LATE)
}

/// Passages that match; the newest, where there are more. In one conversation the oldest: forward, the index leaps over all that
/// others hold of a word, and backward it does not.
fn matches(conn: &Connection, asked: &str, ranges: &[Range], most: usize) -> rusqlite::Result<Vec<i64>> {
    const ONE: &str = "SELECT rowid FROM words WHERE words MATCH ?1 AND rowid BETWEEN ?2 AND ?3 LIMIT ?4";
    const ALL: &str =
        "SELECT rowid FROM words WHERE words MATCH ?1 AND rowid BETWEEN ?2 AND ?3 ORDER BY rowid DESC LIMIT ?4";
    let everywhere = ranges.iter().any(|range| range.last == i64::MAX);
    let mut statement = conn.prepare_cached(if everywhere { ALL } else { ONE })?;
    let mut out = Vec::new();
    for range in ranges {
        let room = read::bounded(most.saturating_sub(out.len()));
        let rows = statement.query_map(params![asked, range.first, range.last, room], |r| r.get(0))?;
        for id in rows {
            out.push(id?);
        }
    }
    Ok(out)
}

/// About how many passages there are in some conversations; unknown everywhere.
fn size(conn: &Connection, ranges: &[Range], scoped: bool) -> rusqlite::Result<Option<usize>> {
    if !scoped {
        return Ok(None);
    }
    let sql = "SELECT coalesce(max(id) - ?1 + 1, 0) FROM passage WHERE id BETWEEN ?1 AND ?2";
    let mut statement = conn.prepare_cached(sql)?;
    let mut all = 0;
    for range in ranges {
        all += statement.query_row([range.first, range.last], |r| r.get::<_, usize>(0))?;
    }
    Ok(Some(all))
}

/// A passage that was read, and what of the query stands in it: many stand beside several others.
struct Seen {
    hit: Hit,
    looked: Looked,
}

/// Reads passages, each text once where that is possible.
struct Reader<'a> {
    conn: &'a Connection,
    query: &'a Query,
    /// The messages on the way to a conversation's tip, where it forked from another one: what else that one recorded is not of it.
    line: HashSet<i64>,
    texts: HashMap<Source, Text>,
    kept: usize,
    seen: HashMap<i64, Option<Rc<Seen>>>,
    keep: &'a mut dyn FnMut(&mut Hit) -> bool,
}

/// Where a passage stands.
struct Place {
    source: Source,
    at: i64,
    start: usize,
    length: usize,
}

impl Reader<'_> {
    /// A passage, if it may be shown.
    fn passage(&mut self, id: i64, upto: i64) -> rusqlite::Result<Option<Rc<Seen>>> {
        if let Some(known) = self.seen.get(&id) {
            return Ok(known.clone());
        }
        let sql = "SELECT source, at, start, length FROM passage WHERE id = ?1";
        let place = |r: &rusqlite::Row<'_>| {
            Ok(Place { source: Source::of(r.get(0)?), at: r.get(1)?, start: r.get(2)?, length: r.get(3)? })
        };
        let place = self.conn.prepare_cached(sql)?.query_row([id], place).optional()?;
        let inherited = upto < i64::MAX;
        let read = match place.filter(|place| place.at < upto) {
            None => None,
            Some(place) if inherited && !self.is_inherited(id, &place)? => None,
            Some(place) => match place.source {
                Source::Node(node) => self.message(node, &place)?,
                Source::Original(original) => self.original(original, passages::conversation(id), &place)?,
            },
        };
        let kept = read.and_then(|mut hit| (self.keep)(&mut hit).then_some(hit));
        let seen = kept.map(|hit| Rc::new(Seen { looked: self.query.look(&hit.text), hit }));
        self.seen.insert(id, seen.clone());
        Ok(seen)
    }

    /// Whether a fork has this of what the conversation before it recorded: a message on its own way, or a text of one that no
    /// other message stands beside.
    fn is_inherited(&self, id: i64, place: &Place) -> rusqlite::Result<bool> {
        if let Source::Node(node) = place.source {
            return Ok(self.line.contains(&node));
        }
        let sql = "SELECT id FROM node WHERE conversation = ?1 AND depth = ?2";
        let mut statement = self.conn.prepare_cached(sql)?;
        let mut rows = statement.query([passages::conversation(id), place.at + 1])?;
        while let Some(row) = rows.next()? {
            if !self.line.contains(&row.get(0)?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn message(&mut self, node: i64, place: &Place) -> rusqlite::Result<Option<Hit>> {
        let sql = "SELECT c.name, n.depth - 1, n.role, o.name, l.kind, l.call, n.digest, t.stamp,
                date(t.now_ms / 1000, 'unixepoch'), p.digest
            FROM node n JOIN conversation c ON c.id = n.conversation
            LEFT JOIN original_link l ON l.conversation = n.conversation AND l.at = n.depth - 1
                AND l.kind IN ('tool_result', 'message')
            LEFT JOIN original o ON o.id = l.original
            LEFT JOIN told t ON t.node = n.id
            LEFT JOIN node p ON p.id = n.parent
            WHERE n.id = ?1 LIMIT 1";
        let hit = |r: &rusqlite::Row<'_>| {
            let role: String = r.get(2)?;
            let (kind, stamp, day): (Option<String>, Option<String>, Option<String>) =
                (r.get(4)?, r.get(7)?, r.get(8)?);
            Ok(Hit {
                id: r.get(3)?,
                conversation: r.get(0)?,
                at: r.get(1)?,
                kind: kind.unwrap_or_else(|| role.clone()),
                call: r.get(5)?,
                role: Some(role),
                date: stamp.or(day),
                digest: Some(Digest(r.get(6)?)),
                parent: r.get::<_, Option<[u8; 16]>>(9)?.map(Digest),
                ..Hit::default()
            })
        };
        let Some(mut hit) = self.conn.prepare_cached(sql)?.query_row([node], hit).optional()? else { return Ok(None) };
        let text = self.text(Source::Node(node))?;
        cut(&mut hit, &text, place);
        Ok(Some(hit))
    }

    /// An original, as a conversation recorded it; never another's call.
    fn original(&mut self, original: i64, conversation: i64, place: &Place) -> rusqlite::Result<Option<Hit>> {
        let sql = "SELECT o.name, c.name, l.at, l.kind, l.call,
                (SELECT coalesce(t.stamp, date(t.now_ms / 1000, 'unixepoch')) FROM node n JOIN told t ON t.node = n.id
                    WHERE n.conversation = c.id AND n.depth = l.at + 1 LIMIT 1)
            FROM original o JOIN original_link l ON l.original = o.id JOIN conversation c ON c.id = l.conversation
            WHERE o.id = ?1 AND c.id = ?2";
        let hit = |r: &rusqlite::Row<'_>| {
            Ok(Hit {
                id: r.get(0)?,
                conversation: r.get(1)?,
                at: r.get(2)?,
                kind: r.get(3)?,
                call: r.get(4)?,
                date: r.get(5)?,
                ..Hit::default()
            })
        };
        let found = self.conn.prepare_cached(sql)?.query_row([original, conversation], hit).optional()?;
        let Some(mut hit) = found else { return Ok(None) };
        let text = self.text(Source::Original(original))?;
        cut(&mut hit, &text, place);
        Ok(Some(hit))
    }

    fn text(&mut self, source: Source) -> rusqlite::Result<Text> {
        if let Some(known) = self.texts.get(&source) {
            return Ok(known.clone());
        }
        let text: Text = match source {
            Source::Node(id) => {
                let sql = "SELECT raw FROM node WHERE id = ?1";
                passages::said(self.conn.prepare_cached(sql)?.query_row([id], |r| r.get(0))?)
            }
            Source::Original(id) => {
                const SQL: &str = concat!("SELECT ", text!(), " FROM original o WHERE o.id = ?1");
                self.conn.prepare_cached(SQL)?.query_row([id], |r| r.get::<_, String>(0))?.into()
            }
        };
        if self.kept + text.len() > KEPT {
            self.texts.clear();
            self.kept = 0;
        }
        self.kept += text.len();
        self.texts.insert(source, text.clone());
        Ok(text)
    }

    /// A short message with its neighbors, as far as they are short, too; and which of them it is.
    fn beside(&mut self, id: i64, seen: &Rc<Seen>, upto: i64) -> rusqlite::Result<(Vec<Rc<Seen>>, usize)> {
        let hit = &seen.hit;
        let mut said = vec![seen.clone()];
        let mut center = 0;
        let mut room = LONG.saturating_sub(columns(&hit.text));
        if hit.digest.is_none() || room == 0 || hit.span.0 > 0 || hit.goes_on {
            return Ok((said, center));
        }
        let (mut before, mut after) = (true, true);
        for step in 1..=BESIDE {
            if before {
                before = match self.neighbor(id - step, &said[0].hit, upto, room, true)? {
                    None => false,
                    Some(one) => {
                        room -= columns(&one.hit.text);
                        said.insert(0, one);
                        center += 1;
                        true
                    }
                };
            }
            if after {
                let last = said.last().unwrap_or(seen).clone();
                after = match self.neighbor(id + step, &last.hit, upto, room, false)? {
                    None => false,
                    Some(one) => {
                        room -= columns(&one.hit.text);
                        said.push(one);
                        true
                    }
                };
            }
        }
        Ok((said, center))
    }

    /// The message with this number, where it stands right beside another one and fits into the room.
    fn neighbor(
        &mut self,
        id: i64,
        beside: &Hit,
        upto: i64,
        room: usize,
        is_before: bool,
    ) -> rusqlite::Result<Option<Rc<Seen>>> {
        let fits = |one: &Rc<Seen>| {
            let one = &one.hit;
            let (first, second) = if is_before { (one, beside) } else { (beside, one) };
            let whole = one.span.0 == 0 && !one.goes_on && columns(&one.text) <= room;
            let follows = first.at + 1 == second.at && first.digest.is_some() && second.parent == first.digest;
            one.conversation == beside.conversation && whole && follows
        };
        Ok(self.passage(id, upto)?.filter(fits))
    }
}

/// Puts a passage's words into a hit.
fn cut(hit: &mut Hit, text: &str, place: &Place) {
    let from = start(text, place.start).len();
    let to = start(text, place.start.saturating_add(place.length)).len().max(from);
    hit.text = text[from..to].to_owned();
    hit.span = (from, to);
    hit.goes_on = to < text.len();
    let mut snippet = hit.text.split_whitespace().collect::<Vec<_>>().join(" ");
    if from > 0 {
        snippet.insert(0, '…');
    }
    if hit.goes_on {
        snippet.push('…');
    }
    hit.snippet = snippet;
}
