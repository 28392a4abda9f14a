//! What people do with single conversations: delete, call, keep, export.

use super::*;
use windowsill_core::export;

const DAY: i64 = 24 * 60 * 60 * 1000;

/// What both branches begin with, and then each its own.
fn branch(own: &str) -> Vec<String> {
    let shared = ["the plan", "a shared answer about walnut", "the next question"].map(str::to_owned);
    shared.into_iter().chain([format!("{own} answers"), format!("{own} asks on")]).collect()
}

/// A conversation, and one that forked from it behind three messages. Each has an original of its own; one text is in both.
fn forked(store: &Store) -> [Vec<Digest>; 2] {
    let both = "both read this\n".repeat(2_000);
    let mut first = batch("trunk", &branch("trunk"), 0);
    let shared = original("trunk", 1, "an original of the shared part");
    first.originals = vec![shared, original("trunk", 4, "what only the trunk read"), original("trunk", 4, &both)];
    let chain = chain_of(&branch("trunk"));
    first.view = Some((chain[2], view_of(3, vec![text_edit(1, "shared")])));
    let mut fork = batch("fork", &branch("fork"), 3);
    fork.conversation.as_mut().unwrap().parent = Some(("trunk".into(), 3));
    fork.originals = vec![original("fork", 4, &both)];
    runtime().block_on(store.record(first)).unwrap();
    runtime().block_on(store.record(fork)).unwrap();
    [chain, chain_of(&branch("fork"))]
}

fn delete(store: &Store, id: &str) -> Option<Deleted> {
    runtime().block_on(store.delete(id, DAY)).unwrap()
}

fn texts(store: &Store, id: &str) -> Vec<String> {
    store.messages(id).unwrap().iter().map(|row| export::plain(&row.raw)).collect()
}

#[test]
fn a_deleted_conversation_is_gone_and_what_shares_its_texts_stays_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let [trunk, fork] = forked(&store);
    assert_eq!(delete(&store, "nobody"), None);
    assert_eq!(delete(&store, "trunk"), Some(Deleted { messages: 2, left: 3, originals: 1 }));
    let see = |store: &Store| {
        // Nothing of the trunk's own is found, by no way.
        assert_eq!(store.conversation("trunk").unwrap(), None);
        assert_eq!(store.locate(&trunk).unwrap().unwrap().depth, 3);
        assert_eq!(store.search("trunk", None, 9).unwrap(), []);
        assert_eq!(store.original(&original_id("what only the trunk read")).unwrap(), None);
        assert!(!store.result_path(&original_id("what only the trunk read")).exists());
        let gone = store.pruned_conversation("trunk").unwrap().unwrap();
        assert_eq!(gone.to_string(), "was pruned on 1970-01-02 by somebody who deleted its conversation");
        // The fork has all that it had.
        assert_eq!(texts(store, "fork"), branch("fork"));
        let located = store.locate(&fork).unwrap().unwrap();
        assert_eq!((located.depth, &*located.conversation, located.conversation_depth), (5, "fork", 5));
        assert_eq!(store.view(&fork).unwrap().unwrap().0, 2);
        let read = |id: &str| store.original_in(id, "fork").unwrap().map(|o| o.at);
        assert_eq!(read(&original_id("an original of the shared part")), Some(1));
        assert_eq!(read(&original_id(&"both read this\n".repeat(2_000))), Some(4));
        let found = store.search("walnut", Some("fork"), 9).unwrap();
        assert_eq!(found.iter().map(|hit| (hit.conversation.as_str(), hit.at)).collect::<Vec<_>>(), [("fork", 1)]);
        assert_eq!(store.conversation("fork").unwrap().unwrap().parent, None);
    };
    see(&store);
    // The page of the trace says that it went, and not what it was.
    let told = store.trace().since(0, 99, &EventFilter::default()).unwrap();
    let told = told.iter().find(|event| event.kind == "conversation_deleted").unwrap();
    assert_eq!(told.data, json!({"originals": 1, "messages": 2, "left_to_forks": 3}));
    drop(store);
    see(&Store::open(dir.path()).unwrap());
}

#[test]
fn forks_of_one_that_is_deleted_stay_forks_of_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    forked(&store);
    let mut early: Vec<String> = branch("early").drain(..1).collect();
    early.extend(["early answers".to_owned(), "early asks on".to_owned()]);
    let mut third = batch("early", &early, 1);
    third.conversation.as_mut().unwrap().parent = Some(("trunk".into(), 1));
    runtime().block_on(store.record(third)).unwrap();
    assert_eq!(delete(&store, "trunk"), Some(Deleted { messages: 2, left: 3, originals: 1 }));
    assert_eq!(store.conversation("early").unwrap().unwrap().parent, Some(("fork".into(), 1)));
    assert_eq!((texts(&store, "early"), texts(&store, "fork")), (early.clone(), branch("fork")));
    assert_eq!(store.search("walnut", Some("early"), 9).unwrap(), [], "it parted before that was said");
    // Each can go by itself, too, and then all of it is gone.
    assert_eq!(delete(&store, "fork"), Some(Deleted { messages: 4, left: 1, originals: 2 }));
    assert_eq!(texts(&store, "early"), early);
    assert_eq!(delete(&store, "early"), Some(Deleted { messages: 3, left: 0, originals: 0 }));
    for table in ["conversation", "node", "original", "passage", "view", "told"] {
        let sql = format!("SELECT count(*) FROM {table}");
        assert_eq!(store.inner.read(|c| c.query_row(&sql, [], |r| r.get::<_, i64>(0))).unwrap(), 0, "{table}");
    }
}

#[test]
fn what_is_deleted_and_said_again_is_recorded_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let [trunk, _] = forked(&store);
    delete(&store, "trunk").unwrap();
    runtime().block_on(store.record(batch("trunk", &branch("trunk"), 3))).unwrap();
    assert_eq!(store.locate(&trunk).unwrap().unwrap().depth, 5);
    assert_eq!(texts(&store, "trunk"), branch("trunk"));
    assert_eq!(store.pruned_conversation("trunk").unwrap(), None);
}

#[test]
fn nothing_is_deleted_beside_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let (store, other) = (Store::open(dir.path()).unwrap(), Store::open(dir.path()).unwrap());
    forked(&store);
    assert!(matches!(runtime().block_on(store.delete("trunk", DAY)), Err(Error::Shared)));
    drop(other);
    assert!(delete(&store, "trunk").is_some());
}

#[test]
fn a_title_by_a_person_stands_before_ours() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let run = |batch| runtime().block_on(store.record(batch)).unwrap();
    run(batch("c", &["a", "b"], 0));
    let row = || store.conversation("c").unwrap().unwrap();
    assert_eq!((row().title.as_str(), row().is_named), ("title of c", false));
    let rename = |title: &str| runtime().block_on(store.rename("c", title)).unwrap();
    assert_eq!(rename("  My \u{1b}[31mplan\u{202e}\n for May ").as_deref(), Some("My [31mplan for May"));
    // Neither a model nor the next request takes it away.
    run(Batch { about: Some(("c".into(), About::Title("A model's title".into()))), ..Batch::default() });
    run(batch("c", &["a", "b", "c"], 2));
    assert_eq!((row().title.as_str(), row().is_named), ("My [31mplan for May", true));
    assert!(store.history("c").unwrap().unwrap().starts_with("# My [31mplan for May\n"));
    assert_eq!(rename(&"x".repeat(500)).unwrap().len(), 80);
    assert_eq!(rename(" \u{7} "), None);
    assert_eq!((row().title.as_str(), row().is_named), ("A model's title", false));
}

#[test]
fn retention_leaves_alone_what_has_a_star() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    for id in ["kept", "old"] {
        runtime().block_on(store.record(batch(id, &[id, "b"], 0))).unwrap();
    }
    runtime().block_on(store.star("kept", true)).unwrap();
    let prune = || runtime().block_on(store.prune(Retention { days: 1, bytes: 1 }, 99 * DAY)).unwrap();
    let done = prune();
    assert_eq!((done.conversations, done.over), (1, true));
    let rows = store.conversations(9).unwrap();
    assert_eq!(rows.iter().map(|row| (row.id.as_str(), row.is_starred)).collect::<Vec<_>>(), [("kept", true)]);
    runtime().block_on(store.star("kept", false)).unwrap();
    assert_eq!(prune().conversations, 1);
}

#[test]
fn a_conversation_is_exported_with_its_last_reply() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let texts = ["a\nb", "c"];
    let all = batch("c", &texts, 0);
    let tip = all.conversation.as_ref().unwrap().tip;
    runtime().block_on(store.record(all)).unwrap();
    let raw = Bytes::from_static(b"{\n  \"role\": \"assistant\",\r\n  \"content\": \"d\\ne\"\n}");
    let reply =
        LastReply { conversation: "c".into(), after: tip, depth: 2, digest: Digest::of(b"d"), raw, text: "d".into() };
    runtime().block_on(store.record(Batch { last_reply: Some(reply), ..Batch::default() })).unwrap();
    let lines = store.jsonl("c").unwrap().unwrap();
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said: Vec<&str> = lines.iter().map(|line| line["content"].as_str().unwrap()).collect();
    assert_eq!(said, ["a\nb", "c", "d\ne"]);
    assert!(store.history("c").unwrap().unwrap().contains("## 2 · assistant\n\nd\ne\n"));
    assert_eq!((store.jsonl("x").unwrap(), store.history("x").unwrap()), (None, None));
}
