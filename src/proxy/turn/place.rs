//! Where a history belongs: which of the chains in the record it goes on, or that it begins one of its own.
//!
//! Nothing is shared across keys: a mark of the key makes the chain. Behind one key, first words alone make no conversation the
//! same: a history without a reply begins anew, with a chain of its own, so that nothing that a person did to one that began alike
//! acts on it. A history with replies goes on where the record has it with its first reply, if it is of the same program, session
//! and system prompt ([`crate::proxy::state::whose`]); or it is the one that waits for its second request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;

use super::recall::offer::woven;
use crate::conversation::{Digest, Message, Role, chain};
use crate::proxy::state::whose::{Kin, Whose, kin, whose_is};
use crate::proxy::state::{headers, scope};
use crate::proxy::{App, Error};
use crate::recall;
use crate::store::Located;
use crate::wire::openai_chat::{self, Request};

/// Conversations with the same first message that are looked at, the last active first.
const ALIKE: usize = 1024;

/// Messages without a reply that may be a person's first words and what a client puts around them; more are a history of their own.
const FIRST_WORDS: usize = 5;

/// Of these, those that are looked at for one that was never answered.
const CUT_OFF: usize = 8;

/// What stands between a seed and what tells its chain from those that begin alike.
const TAG: &str = "\n\n+";

/// Hexadecimal digits that two names of conversations which begin alike share, and those that tell them apart.
const SHARED: usize = 6;
const OWN: usize = 6;
/// The same where the client named the conversation.
const OWN_OF_NAMED: usize = 8;

/// Where a history belongs.
pub(in crate::proxy) struct Place {
    /// What makes its chain.
    pub(in crate::proxy) seed: Arc<str>,
    /// Chain hash of each prefix of the body.
    pub(in crate::proxy) chain: Vec<Digest>,
    /// Where the record knew it before.
    pub(in crate::proxy) located: Option<Located>,
    /// The conversation that waited for this request.
    pub(in crate::proxy) waited: Option<String>,
    /// Whose the conversation is from now on.
    pub(in crate::proxy) whose: Whose,
    /// What tells the history, as the client sent it, from others.
    pub(in crate::proxy) end: Option<u64>,
}

/// A chain that the record has of a history.
struct Found {
    seed: Arc<str>,
    chain: Vec<Digest>,
    located: Located,
    kin: Kin,
}

/// What is asked for: the client's request before anything is woven into it.
struct Asked<'a> {
    /// The seed of chains that nothing sets apart.
    base: String,
    /// The chain hash of its first message there.
    root: Digest,
    /// The name that the client gave, where it can be one.
    wish: Option<&'a str>,
    whose: Whose,
    /// Messages before the first reply, or before what shows as well as one that a history is the same.
    opening: usize,
    /// What tells each prefix from others.
    ends: Vec<u64>,
}

impl Asked<'_> {
    /// What the names of conversations that begin like this one begin with.
    fn family(&self) -> String {
        match self.wish {
            Some(wish) => format!("{wish}."),
            None => format!("c{}", &self.root.hex()[..SHARED]),
        }
    }

    fn own(&self) -> usize {
        if self.wish.is_some() { OWN_OF_NAMED } else { OWN }
    }
}

/// The name that belongs to a seed which has a tag. `wish`: the one that the client gave.
pub(super) fn tagged_name(seed: &str, wish: Option<&str>, request: &Request) -> Option<String> {
    let (base, tag) = seed.rsplit_once(TAG)?;
    let root = chain::chain(base, request.conversation.body.get(..1)?)[0];
    Some(match wish {
        Some(wish) => format!("{wish}.{tag}"),
        None => format!("c{}{tag}", &root.hex()[..SHARED]),
    })
}

/// What tells each prefix of a history from others.
fn ends(base: &str, body: &[Message]) -> Vec<u64> {
    let mix = |state: u64, n: u64| (state ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let half = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
    let seed = Digest::of(base.as_bytes()).0;
    let step = |state: &mut u64, message: &Message| {
        let (low, high) = message.digest.0.split_at(8);
        *state = mix(mix(*state, half(low)), half(high));
        Some(*state)
    };
    body.iter().scan(half(&seed[..8]), step).collect()
}

/// Where a history belongs. Weaves in what replies of it recalled. `wish`: the name that the client gave; `is_real`: whether it
/// is going to be on record.
pub(in crate::proxy) async fn place(
    app: &App,
    request: &mut Request,
    wish: Option<&str>,
    whose: Whose,
    (from_client, is_real): (&HeaderMap, bool),
) -> Result<Place, Error> {
    let base = whose.seed(wish.unwrap_or(""));
    let body = &request.conversation.body;
    if request.seed.is_some() || body.is_empty() {
        let seed = request.seed.clone().unwrap_or_else(|| base.into());
        let (chain, located) = threaded(app, &seed, request)?;
        return Ok(Place { seed, chain, located, waited: None, whose, end: None });
    }
    let root = chain::chain(&base, &body[..1])[0];
    let opening = body.iter().position(|message| message.role == Role::Assistant).unwrap_or(body.len());
    let opening = opening.min(FIRST_WORDS);
    let ends = ends(&base, body);
    let end = ends.last().copied();
    let wish = wish.filter(|wish| !has_form_of_id(wish));
    let mut asked = Asked { base, root, wish, whose, opening, ends };
    let named = headers::text(from_client, &headers::CONTINUES);
    let named = named.map(|id| named_by_id(app, &asked, request, &id)).transpose()?.flatten();
    let found = match opening < request.conversation.body.len() {
        _ if named.is_some() => named.map(|found| (found, false)),
        true => goes_on(app, &mut asked, request, from_client).await?,
        false => sent_again(app, &asked, request).await?.map(|found| (found, true)),
    };
    if let Some((found, waited)) = found {
        let whose = whose_is(app, &found.located.conversation)?;
        let whose = match whose {
            Some(known) => known.with(asked.whose),
            None => asked.whose,
        };
        // A conversation that waited has nothing woven in yet but before its first reply.
        let (chain, located) = match waited {
            true => threaded(app, &found.seed, request)?,
            false => (found.chain, Some(found.located.clone())),
        };
        let waited = waited.then_some(found.located.conversation);
        return Ok(Place { seed: found.seed, chain, located, waited, whose, end });
    }
    let seed = fresh(app, &asked, request.conversation.body.len(), is_real)?;
    let (chain, located) = threaded(app, &seed, request)?;
    let whose = asked.whose.begun(chain.len());
    Ok(Place { seed, chain, located, waited: None, whose, end })
}

/// The chain of a conversation that the client names by an id of ours, where its history begins with that one's. It is the same
/// whatever program, session or system prompt it goes on with; under another key, no seed leads to it.
fn named_by_id(app: &App, asked: &Asked<'_>, request: &mut Request, id: &str) -> Result<Option<Found>, Error> {
    let tag = |digits: usize| id.len().checked_sub(digits).and_then(|at| id.get(at..));
    let tagged = [OWN, OWN_OF_NAMED].into_iter().filter_map(tag).map(|tag| format!("{}{TAG}{tag}", asked.base));
    for seed in tagged.chain([asked.base.clone()]) {
        let sent = request.conversation.body.len();
        let (chain, located) = threaded(app, &seed, request)?;
        match located.filter(|located| located.conversation == id) {
            Some(located) => return Ok(Some(Found { seed: seed.into(), chain, located, kin: Kin::Same })),
            None => unweave(request, sent),
        }
    }
    Ok(None)
}

/// The chain of a request's history and where the record knows it. Weaves in what replies of it recalled.
fn threaded(app: &App, seed: &str, request: &mut Request) -> Result<(Vec<Digest>, Option<Located>), Error> {
    let (body, chain) = woven(app, seed, std::mem::take(&mut request.conversation.body));
    request.conversation.body = body;
    let located = app.store.locate(&chain)?;
    Ok((chain, located))
}

/// The chain that a history with replies goes on, and whether its conversation waited for it. What was recalled is woven in
/// where it did not.
async fn goes_on(
    app: &App,
    asked: &mut Asked<'_>,
    request: &mut Request,
    from_client: &HeaderMap,
) -> Result<Option<(Found, bool)>, Error> {
    // The longest of its prefixes that was sent, reply and all: nearly always the last request.
    if let Some(seed) = asked.ends.get(asked.opening + 1..).and_then(|ends| app.lives.last_end(ends))
        && let Some(found) = found(app, &seed, request, asked)?
    {
        return Ok(Some((found, false)));
    }
    // The last request's messages may still be queued.
    app.store.flush().await;
    let (mut best, mut waiting, mut moved): (Option<Found>, Vec<Found>, Option<Whose>) = Default::default();
    for seed in seeds_alike(app, asked, request, from_client)? {
        let Some(replied) = knows_head(app, &seed, request, asked.opening)? else { continue };
        if !replied {
            match waits(app, &seed, request, asked)? {
                Some(found) => waiting.push(found),
                None => moved = moved.or(moved_on(app, &seed, request, asked)?),
            }
            continue;
        }
        let sent = request.conversation.body.len();
        let Some(found) = found(app, &seed, request, asked)? else {
            moved = moved.or(moved_on(app, &seed, request, asked)?);
            continue;
        };
        unweave(request, sent);
        let depth = |found: &Found| (found.located.depth, found.kin);
        if best.as_ref().is_none_or(|best| depth(&found) > depth(best)) {
            best = Some(found);
        }
    }
    if let Some(found) = best {
        let (chain, located) = threaded(app, &found.seed, request)?;
        let located = located.unwrap_or(found.located);
        return Ok(Some((Found { chain, located, ..found }, false)));
    }
    if let Some(found) = chosen(app, waiting, &request.conversation.body[asked.opening..]) {
        return Ok(Some((found, true)));
    }
    asked.whose = moved.unwrap_or_else(|| asked.whose.clone());
    Ok(None)
}

/// The chain of first words that a client sent in the same session a moment ago, and that nobody has answered since: it tries
/// again. Without a session of the client's, nobody can tell that from another chat, unless what was to answer it was killed.
async fn sent_again(app: &App, asked: &Asked<'_>, request: &Request) -> Result<Option<Found>, Error> {
    let named = asked.whose.names_session();
    if named {
        app.store.flush().await;
    } else if app.store.locate(&[asked.root])?.is_none() {
        return Ok(None);
    }
    let most = if named { usize::MAX } else { CUT_OFF };
    for seed in seeds_alike(app, asked, request, &HeaderMap::new())?.into_iter().take(most) {
        let found = waits(app, &seed, request, asked)?;
        if let Some(found) = found.filter(|found| found.kin == Kin::Same && (named || was_cut_off(app, found))) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Whether a conversation that waits for its second request was sent by an earlier process alone, and never answered: what was
/// forwarded for it is forwarded again, whatever is believed of its size by now.
fn was_cut_off(app: &App, found: &Found) -> bool {
    app.lives.with(&found.located.conversation, |live| live.prompt.last.is_none()) && replied(app, found).is_none()
}

/// What makes the chains of histories that begin like this one, the last active first; the one without a tag, and those of
/// older versions, come before them.
fn seeds_alike(
    app: &App,
    asked: &Asked<'_>,
    request: &Request,
    from_client: &HeaderMap,
) -> Result<Vec<Arc<str>>, Error> {
    let wish = headers_wish(&asked.base);
    let old = [
        wish.to_owned(),
        format!("{wish}\n{}", scope::old_mark(from_client, &request.conversation)),
        // Before 0.2 the model was part of it.
        format!("{wish}\n{}", request.model),
    ];
    let mut seeds: Vec<Arc<str>> = vec![asked.base.as_str().into()];
    seeds.extend(old.into_iter().map(Arc::from).filter(|seed| *seed != seeds[0]).collect::<Vec<_>>());
    let family = asked.family();
    for name in app.store.catalog().named(&family, ALIKE)? {
        let tag = &name[family.len()..];
        if tag.len() == asked.own() && tag.bytes().all(|b| b.is_ascii_hexdigit()) {
            seeds.push(format!("{}{TAG}{tag}", asked.base).into());
        }
    }
    Ok(seeds)
}

/// Whether the record knows the first reply under a seed; `None` where it does not even know all that stands before it.
fn knows_head(app: &App, seed: &str, request: &Request, opening: usize) -> Result<Option<bool>, Error> {
    let head = request.conversation.body[..=opening].to_vec();
    let before = chain::chain(seed, &head[..opening]);
    if !before.is_empty() && app.store.locate(&before)?.is_none_or(|known| known.depth < before.len()) {
        return Ok(None);
    }
    let (_, woven) = woven(app, seed, head);
    Ok(Some(app.store.locate(&woven)?.is_some_and(|known| known.depth == woven.len())))
}

/// The chain under a seed, where the record has it with a reply and the request is of that conversation: then what was
/// recalled is woven in, and else it is not.
fn found(app: &App, seed: &Arc<str>, request: &mut Request, asked: &Asked<'_>) -> Result<Option<Found>, Error> {
    let sent = request.conversation.body.len();
    let (chain, located) = threaded(app, seed, request)?;
    let located = located.filter(|located| is_talk(&request.conversation.body[..located.depth]));
    let kin = match &located {
        Some(located) => kin(app, &located.conversation, &asked.whose, gone_on(located, &chain))?,
        None => Kin::Not,
    };
    let Some(located) = located.filter(|_| kin != Kin::Not) else {
        unweave(request, sent);
        return Ok(None);
    };
    Ok(Some(Found { seed: Arc::clone(seed), chain, located, kin }))
}

/// Whose a history is that goes on with one of another system prompt: see [`Whose::moved_to`].
fn moved_on(app: &App, seed: &Arc<str>, request: &mut Request, asked: &Asked<'_>) -> Result<Option<Whose>, Error> {
    let sent = request.conversation.body.len();
    let (chain, located) = threaded(app, seed, request)?;
    unweave(request, sent);
    // Its last reply may be on record in other words than the client has it.
    let whole = |l: &Located| l.depth + 1 >= l.conversation_depth && l.depth < chain.len();
    let Some(located) = located.filter(whole) else { return Ok(None) };
    Ok(whose_is(app, &located.conversation)?.and_then(|whose| whose.moved_to(&asked.whose)))
}

/// The conversation under a seed that has these first words and nothing behind its first reply.
fn waits(app: &App, seed: &Arc<str>, request: &Request, asked: &Asked<'_>) -> Result<Option<Found>, Error> {
    let chain = chain::chain(seed, &request.conversation.body[..asked.opening]);
    let Some(located) = app.store.locate(&chain)? else { return Ok(None) };
    if located.depth < chain.len() || located.conversation_depth > chain.len() + 1 {
        return Ok(None);
    }
    let kin = kin(app, &located.conversation, &asked.whose, 0)?;
    Ok((kin != Kin::Not).then(|| Found { seed: Arc::clone(seed), chain, located, kin }))
}

/// Which of the conversations that wait for a second request this one is: the one that was answered with these words. A client
/// may spell them otherwise: then it is the only one that waits, if there is no other reply, which that one never had. Where it
/// is not clear, it is none of them. `said_since`: the first reply, and what stands behind it.
fn chosen(app: &App, mut waiting: Vec<Found>, said_since: &[Message]) -> Option<Found> {
    let nearest = waiting.iter().map(|found| found.kin).max()?;
    waiting.retain(|found| found.kin == nearest);
    let said = said(&said_since.first()?.text);
    let answered = |found: &Found| said.is_some() && replied(app, found) == said;
    if waiting.iter().any(answered) {
        waiting.retain(answered);
    } else if has_more_replies(said_since) {
        return None;
    }
    if waiting.len() == 1 { waiting.pop() } else { None }
}

/// What tells the reply that a conversation waits behind from others.
fn replied(app: &App, found: &Found) -> Option<Digest> {
    let id = &found.located.conversation;
    let recorded = || said(&openai_chat::message(app.store.last_reply(id).ok()??.raw).ok()?.text);
    // After a restart, the record alone knows it.
    app.lives.with(id, |live| live.replied).or_else(recorded)
}

/// A seed for a history that begins a conversation. The first with these words has none but the client's own.
fn fresh(app: &App, asked: &Asked<'_>, messages: usize, is_real: bool) -> Result<Arc<str>, Error> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let unique = || unique(&asked.root, COUNT.fetch_add(1, Ordering::Relaxed));
    // The same history may come twice at once where it has replies; first words alone are somebody's own.
    let proof = match asked.opening < messages {
        true => Digest::of(format!("{:?} {:?}", asked.whose, asked.ends[asked.opening]).as_bytes()),
        false => unique(),
    };
    let root = format!("root {}", asked.root.hex());
    if app.store.locate(&[asked.root])?.is_none() && (!is_real || app.lives.claim(&root, &proof)) {
        return Ok(asked.base.as_str().into());
    }
    let family = asked.family();
    loop {
        let tag = &unique().hex()[..asked.own()];
        let name = format!("{family}{tag}");
        if app.store.catalog().named(&name, 1)?.is_empty()
            && app.store.pruned_conversation(&name)?.is_none()
            && (!is_real || app.lives.take(&name, &asked.root))
        {
            return Ok(format!("{}{TAG}{tag}", asked.base).into());
        }
    }
}

/// Whether messages that begin with a reply hold another one. Several messages in a row may be one reply.
fn has_more_replies(messages: &[Message]) -> bool {
    let is_reply = |message: &&Message| message.role == Role::Assistant;
    messages.iter().skip_while(is_reply).any(|message| is_reply(&message))
}

/// How many messages a history goes on from, where these are all that its conversation has; else 0.
fn gone_on(located: &Located, chain: &[Digest]) -> usize {
    let whole = located.depth == located.conversation_depth && located.depth < chain.len();
    if whole { located.depth } else { 0 }
}

/// Takes what was woven into a body out again. `sent`: how many messages it had.
fn unweave(request: &mut Request, sent: usize) {
    let body = &mut request.conversation.body;
    if body.len() > sent {
        let woven: Vec<bool> = (0..body.len()).map(|at| recall::is_woven(body, at)).collect();
        let mut woven = woven.into_iter();
        body.retain(|_| woven.next() != Some(true));
    }
}

/// The name that the client gave, in a seed that nothing sets apart.
fn headers_wish(base: &str) -> &str {
    base.split_once("\n\n#").map_or(base, |(wish, _)| wish)
}

/// A digest that there was never before.
fn unique(root: &Digest, count: u64) -> Digest {
    let now = crate::clock::now().as_nanos();
    Digest::of(format!("{} {now} {} {count}", root.hex(), std::process::id()).as_bytes())
}

/// What tells the text of a reply from others; `None` where it has none.
pub(in crate::proxy) fn said(text: &str) -> Option<Digest> {
    let text = text.trim();
    (!text.is_empty()).then(|| Digest::of(text.as_bytes()))
}

/// Whether a session reads like a name that windowsill gives itself: `c` and 12 hexadecimal digits, or `….` and 8.
pub(super) fn has_form_of_id(session: &str) -> bool {
    let hex = |text: &str, length: usize| text.len() == length && text.bytes().all(|b| b.is_ascii_hexdigit());
    session == "empty"
        || session.strip_prefix('c').is_some_and(|rest| hex(rest, 12))
        || session.rsplit_once('.').is_some_and(|(_, rest)| hex(rest, 8))
}

/// Whether messages hold a reply, or so many words that nobody begins with: what a person says first may begin many conversations.
pub(super) fn is_talk(body: &[Message]) -> bool {
    body.len() > FIRST_WORDS || body.iter().any(|message| message.role == Role::Assistant)
}
