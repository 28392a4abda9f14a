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
