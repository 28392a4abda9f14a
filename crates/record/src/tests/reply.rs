//! The last reply of a conversation: read and searched until the client goes on, and never twice.

use super::*;
use crate::LastReply;

/// A reply to the history that these texts are.
fn reply<S: AsRef<str>>(id: &str, texts: &[S], said: &str) -> Batch {
    let chain = chain_of(texts);
    let raw = json!({"role": "assistant", "content": said}).to_string();
    let reply = LastReply {
        conversation: id.into(),
        after: *chain.last().unwrap(),
        depth: texts.len(),
        digest: Digest::of(said.as_bytes()),
        raw: raw.into(),
        text: said.into(),
    };
    Batch { last_reply: Some(reply), ..Batch::default() }
}

fn found(store: &Store, words: &str) -> Vec<(String, usize)> {
    let hits = store.search(words, Some("a"), 10).unwrap();
    hits.into_iter().map(|hit| (hit.kind, hit.at)).collect()
}

#[test]
fn a_reply_is_read_until_its_client_goes_on_and_makes_no_fork() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let write = |batch| runtime().block_on(store.record(batch)).unwrap();
    let asked = ["where is the lighthouse?"];
    write(batch("a", &asked, 0));
    write(reply("a", &asked, "On the northern cape."));
    let last = store.last_reply("a").unwrap().unwrap();
    assert_eq!((last.at, last.role.as_str(), last.digest), (1, "assistant", Digest::of(b"On the northern cape.")));
    assert_eq!(store.message("a", 1).unwrap().unwrap().raw, last.raw);
    assert_eq!((store.messages("a").unwrap().len(), store.messages_and_reply("a").unwrap().len()), (1, 2));
    assert_eq!(found(&store, "northern cape"), [("assistant".to_owned(), 1)]);
    assert!(store.history("a").unwrap().unwrap().contains("northern cape"));
    // The same history again is no fork of one that goes on, and a second reply takes the place of the first.
    let located = store.locate(&chain_of(&asked)).unwrap().unwrap();
    assert_eq!((located.depth, located.conversation_depth), (1, 1));
    write(batch("a", &asked, 0));
    assert!(store.last_reply("a").unwrap().is_some());
    write(reply("a", &asked, "On the southern cape."));
    assert_eq!((found(&store, "northern cape").len(), found(&store, "southern").len()), (1, 1), "the cape is in both");
    assert!(!store.history("a").unwrap().unwrap().contains("northern"));
    // The client spells it otherwise: its words count, once.
    let goes_on = ["where is the lighthouse?", "It stands on the southern cape", "thanks"];
    let located = store.locate(&chain_of(&goes_on)).unwrap().unwrap();
    assert_eq!((located.depth, located.conversation_depth), (1, 1));
    write(batch("a", &goes_on, 1));
    assert_eq!(store.last_reply("a").unwrap(), None);
    assert_eq!(found(&store, "southern cape"), [("assistant".to_owned(), 1)]);
    // A reply that comes when the client has gone on already is too late.
    write(reply("a", &asked, "On the eastern cape."));
    assert_eq!((store.last_reply("a").unwrap(), found(&store, "eastern").len()), (None, 0));
    let nodes = store.inner.read(|c| c.query_row("SELECT count(*) FROM node", [], |r| r.get::<_, i64>(0))).unwrap();
    assert_eq!(nodes, 3);
}

#[test]
fn a_reply_that_comes_back_stays_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let write = |batch| runtime().block_on(store.record(batch)).unwrap();
    let rows = || {
        let read = |c: &rusqlite::Connection| {
            let mut statement =
                c.prepare("SELECT n.id, n.raw, t.now_ms FROM node n JOIN told t ON t.node = n.id ORDER BY n.depth")?;
            let row = |r: &rusqlite::Row<'_>| Ok((r.get::<_, i64>(0)?, r.get::<_, Vec<u8>>(1)?, r.get::<_, i64>(2)?));
            let rows = statement.query_map([], row)?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        };
        store.inner.read(read).unwrap()
    };
    let asked = ["where is the lighthouse?"];
    write(batch("a", &asked, 0));
    write(reply("a", &asked, "On the northern cape."));
    let kept = rows();
    // The same request, answered with the same words.
    write(batch("a", &asked, 0));
    write(reply("a", &asked, "On the northern cape."));
    assert_eq!(rows(), kept);
    // The client spells the message otherwise: its bytes count, and the words are found once.
    let goes_on = ["where is the lighthouse?", "On the northern cape.", "thanks"];
    let mut next = batch("a", &goes_on, 1);
    next.nodes[0].digest = Digest::of(b"On the northern cape.");
    next.nodes[0].raw = br#"{ "role": "assistant", "content": "On the northern cape." }"#.as_slice().into();
    let raw = next.nodes[0].raw.clone();
    write(next);
    assert_eq!(rows()[1], (kept[1].0, raw.to_vec(), kept[1].2), "the row that there was, said when the model said it");
    assert_eq!(store.last_reply("a").unwrap(), None);
    assert_eq!(found(&store, "northern cape"), [("assistant".to_owned(), 1)]);
    let located = store.locate(&chain_of(&goes_on)).unwrap().unwrap();
    assert_eq!((located.depth, located.conversation_depth), (3, 3));
    // With other spaces in its text, its passages stand elsewhere: then it is a row of its own.
    write(reply("a", &goes_on, "You are welcome."));
    let further = [goes_on.as_slice(), &["You are welcome.", "bye"]].concat();
    let mut next = batch("a", &further, 3);
    next.nodes[0].digest = Digest::of(b"You are welcome.");
    next.nodes[0].raw = br#"{"role":"assistant","content":"  You are welcome."}"#.as_slice().into();
    next.nodes[0].text = "  You are welcome.".into();
    write(next);
    assert_eq!(found(&store, "welcome"), [("assistant".to_owned(), 3)]);
    assert_eq!((rows().len(), store.last_reply("a").unwrap()), (5, None));
}

#[test]
fn a_reply_survives_a_restart_and_goes_with_its_conversation() {
    let dir = tempfile::tempdir().unwrap();
    let asked = ["where is the lighthouse?"];
    let write = |store: &Store, batch| runtime().block_on(store.record(batch)).unwrap();
    let large = "a long story of the lighthouse ".repeat(80_000);
    {
        let store = Store::open(dir.path()).unwrap();
        write(&store, batch("a", &asked, 0));
        write(&store, reply("a", &asked, &large));
    }
    let store = Store::open(dir.path()).unwrap();
    let last = store.last_reply("a").unwrap().unwrap();
    assert_eq!(last.raw, json!({"role": "assistant", "content": large}).to_string());
    let retention = Retention { days: 1, bytes: 0 };
    let pruned = runtime().block_on(store.prune(retention, i64::MAX / 2)).unwrap();
    assert_eq!((pruned.conversations, pruned.messages), (1, 2));
    assert!(store.search("lighthouse", None, 10).unwrap().is_empty());
    assert_eq!(store.last_reply("a").unwrap(), None);
}
