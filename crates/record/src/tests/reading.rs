//! What is written reads back: originals, conversations, search, histories, and who may open what.

use std::fs;

use super::*;
use crate::{Item, Reply, Rule, RuleChange, Told};

#[test]
fn the_same_text_is_one_original() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let runtime = runtime();
    for at in 0..51 {
        let conversation = if at == 50 { "b" } else { "a" };
        let batch = Batch { originals: vec![original(conversation, at, "same")], ..Batch::default() };
        runtime.block_on(store.record(batch)).unwrap();
    }
    let count = |table| {
        let sql = format!("SELECT count(*) FROM {table}");
        store.inner.read(|c| c.query_row(&sql, [], |r| r.get::<_, i64>(0))).unwrap()
    };
    assert_eq!((count("original"), count("original_link")), (1, 2));
    let id = original_id("same");
    assert_eq!(store.original(&id).unwrap(), Some(original("a", 0, "same")));
    assert_eq!(store.original_in(&id, "b").unwrap(), Some(original("b", 50, "same")));
    assert_eq!(store.original_in(&id, "c").unwrap(), None);
    assert_eq!(fs::read(store.result_path(&id)).unwrap(), b"same");
}

#[test]
fn an_original_keeps_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    for text in ["", "\r\n \t\n", "nul \0 inside", "日本語 \u{1b}[31m\u{feff}", "no newline at the end"] {
        let raw = Some(Bytes::from_static(b"{ \"odd\" :  1 }"));
        let whole = Original { raw, ..original("c", 3, text) };
        let batch = Batch { originals: vec![whole.clone()], ..Batch::default() };
        runtime().block_on(store.record(batch)).unwrap();
        assert_eq!(store.original(&whole.id).unwrap(), Some(whole.clone()));
        assert_eq!(fs::read(store.result_path(&whole.id)).unwrap(), text.as_bytes());
    }
}

#[test]
fn another_text_with_the_same_id_gets_a_longer_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let wanted = original_id("second");
    assert_eq!(store.free_id("second").unwrap(), wanted);
    let first = Original { id: wanted.clone(), ..original("c", 0, "first") };
    runtime().block_on(store.record(Batch { originals: vec![first], ..Batch::default() })).unwrap();
    let longer = store.free_id("second").unwrap();
    assert!(longer.starts_with(&wanted) && longer.len() == 21, "{longer}");
    let second = || Batch { originals: vec![original("c", 1, "second")], ..Batch::default() };
    runtime().block_on(store.record(second())).unwrap();
    assert_eq!(store.original(&wanted).unwrap().unwrap().text, "first");
    assert_eq!(store.original(&longer).unwrap().unwrap().text, "second");
    assert_eq!(fs::read(store.result_path(&wanted)).unwrap(), b"first");
    let events = store.trace().since(0, 10, &EventFilter::of("c")).unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].data, json!({ "wanted": wanted, "recorded_as": longer }));
}

#[test]
fn a_message_has_its_newest_spelling() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let first = batch("a", &["x", "y"], 0);
    let (at, unknown) = (first.nodes[1].chain, Digest::of(b"nothing"));
    runtime().block_on(store.record(first)).unwrap();
    let before = store.messages("a").unwrap();
    for raw in
        [Bytes::from_static(b"{ \"content\":\"y\" }"), Bytes::from(vec![b'y'; 3 << 20]), Bytes::from_static(b"{}")]
    {
        let respelled = vec![(at, raw.clone()), (unknown, Bytes::from_static(b"z"))];
        runtime().block_on(store.record(Batch { respelled, ..Batch::default() })).unwrap();
        let now = store.messages("a").unwrap();
        assert_eq!((now.len(), &now[0], &now[1].raw), (2, &before[0], &raw));
        assert_eq!((now[1].chain, now[1].digest), (before[1].chain, before[1].digest));
    }
}

#[test]
fn conversations_are_found_by_id_prefix_and_session() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    for (id, session, now_ms) in [("ab12", None, 3), ("ab34", Some("s/1"), 9), ("cd", Some("s/1"), 5)] {
        let mut batch = batch(id, &[id], 0);
        let update = batch.conversation.as_mut().unwrap();
        (update.session, update.now_ms) = (session.map(str::to_owned), now_ms);
        update.parent = (id == "cd").then(|| ("ab12".to_owned(), 1));
        runtime().block_on(store.record(batch)).unwrap();
    }
    let find = |id: &str| store.conversation(id).unwrap().map(|c| c.id);
    assert_eq!(find("ab12").as_deref(), Some("ab12"));
    assert_eq!(find("c").as_deref(), Some("cd"));
    assert_eq!(find("s/1").as_deref(), Some("ab34"));
    assert_eq!((find("x"), find(""), find("%")), (None, None, None));
    let error = store.conversation("ab").unwrap_err().to_string();
    assert_eq!(error, "2 conversations have ids that begin with `ab`; the newest are ab34, ab12");
    let order: Vec<String> = store.conversations(2).unwrap().into_iter().map(|c| c.id).collect();
    assert_eq!(order, ["ab34", "cd"]);
    let row = store.conversation("cd").unwrap().unwrap();
    assert_eq!((row.parent, row.state), (Some(("ab12".into(), 1)), json!({ "window": 4096 })));
    assert_eq!((row.created_ms, row.updated_ms, row.tip), (5, 5, chain_of(&["cd"])[0]));
}

#[test]
fn a_fork_reads_through_its_parent() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let runtime = runtime();
    let mut first = batch("a", &["apple", "banana", "cherry"], 0);
    first.originals = vec![original("a", 1, "banana original"), original("a", 2, "cherry original")];
    runtime.block_on(store.record(first)).unwrap();
    let mut fork = batch("b", &["apple", "banana", "damson"], 2);
    fork.conversation.as_mut().unwrap().parent = Some(("a".into(), 2));
    runtime.block_on(store.record(fork)).unwrap();
    let rows = store.messages("b").unwrap();
    let owners: Vec<(usize, &str)> = rows.iter().map(|r| (r.at, r.conversation.as_str())).collect();
    assert_eq!(owners, [(0, "a"), (1, "a"), (2, "b")]);
    let ats =
        |query, scope| -> Vec<usize> { store.search(query, scope, 10).unwrap().into_iter().map(|h| h.at).collect() };
    assert_eq!(ats("banana", Some("b")), [1], "message and original are one hit");
    assert_eq!(ats("cherry", Some("b")), [0; 0]);
    assert_eq!(ats("cherry", Some("a")), [2]);
    assert_eq!(ats("damson", Some("a")), [0; 0]);
    assert_eq!(ats("damson", None), [2]);
    assert_eq!(ats("damson", Some("unknown")), [0; 0]);
    assert!(store.original_in(&original_id("banana original"), "b").unwrap().is_some());
    assert!(store.original_in(&original_id("cherry original"), "b").unwrap().is_none());
}

#[test]
fn a_message_is_found_by_its_number_on_either_side_of_a_fork() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let runtime = runtime();
    runtime.block_on(store.record(batch("a", &["apple", "banana", "cherry", "date"], 0))).unwrap();
    for (id, texts, shared) in [
        ("b", &["apple", "banana", "damson", "elder"][..], 2),
        ("c", &["apple", "banana", "damson", "fig", "grape"][..], 3),
    ] {
        let mut fork = batch(id, texts, shared);
        fork.conversation.as_mut().unwrap().parent = Some((if id == "b" { "a" } else { "b" }.into(), shared));
        runtime.block_on(store.record(fork)).unwrap();
    }
    for (id, texts) in [
        ("a", &["apple", "banana", "cherry", "date"][..]),
        ("b", &["apple", "banana", "damson", "elder"]),
        ("c", &["apple", "banana", "damson", "fig", "grape"]),
    ] {
        for at in 0..6 {
            let found = store.message(id, at).unwrap().map(|m| (m.at, windowsill_core::export::plain(&m.raw)));
            assert_eq!(found, texts.get(at).map(|t| (at, (*t).to_owned())), "{id}:{at}");
        }
    }
    assert_eq!(store.message("nonesuch", 0).unwrap(), None);
    // Numbers that the database has no room for are those of nothing.
    for at in [i64::MAX as usize - 1, i64::MAX as usize, i64::MAX as usize + 1, usize::MAX] {
        assert_eq!(store.message("b", at).unwrap(), None, "{at}");
        assert_eq!(store.messages_between("b", at, usize::MAX).unwrap(), [], "{at}");
        assert_eq!(store.messages_between("b", 0, at).unwrap().len(), 4, "{at}");
        assert_eq!(store.conversations(at).unwrap().len(), 3, "{at}");
        assert_eq!(store.trace().since(0, at, &EventFilter::default()).unwrap(), [], "{at}");
        assert_eq!(store.trace().before(at, &EventFilter::default()).unwrap(), 0, "{at}");
    }
    let whole = store.history("c").unwrap().unwrap();
    assert!(whole.contains("## 2 · user\n\ndamson\n\n## 3 · assistant\n\nfig"), "{whole}");
    assert_eq!(store.history("nonesuch").unwrap(), None);
}

#[test]
fn a_whole_history_marks_what_stands_as_a_brief() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let chain = chain_of(&["a", "b", "c", "d", "e"]);
    let mut batch = Batch { conversation: Some(update("c", &chain)), nodes: tools(&chain), ..Batch::default() };
    batch.view = Some((chain[4], view_of(5, vec![fold(1, 3, "the brief"), text_edit(4, "x")])));
    runtime().block_on(store.record(batch)).unwrap();
    let whole = store.history("c").unwrap().unwrap();
    let order = [
        "# title of c",
        "## 0 · user\n\nFix it",
        "## 2 · tool · answers call_1",
        "*Folded: messages 1 to 2 now stand as a brief of 9 characters.*",
        "```\nthe brief\n```",
        "## 3 · user",
        &format!("*Shortened in the prompt; `windowsill recall {}`.*", original_id("x")),
        "## 4 · assistant",
    ];
    let mut from = 0;
    for part in order {
        from += whole[from..].find(part).unwrap_or_else(|| panic!("{part} is not behind {from} in {whole}"));
    }
}

fn tools(chain: &[Digest]) -> Vec<Node> {
    let call = json!({ "id": "call_1", "type": "function",
        "function": { "name": "read", "arguments": "{\"path\":\"a.md\"}" } });
    vec![
        node(chain, 0, "user", &json!({ "role": "user", "content": "Fix it" })),
        node(chain, 1, "assistant", &json!({ "role": "assistant", "content": null, "tool_calls": [call] })),
        node(
            chain,
            2,
            "tool",
            &json!({ "role": "tool", "tool_call_id": "call_1", "content": "```rust\nfn a() {}\n```\n" }),
        ),
        node(
            chain,
            3,
            "user",
            &json!({ "role": "user", "content": [
            { "type": "text", "text": "And this" }, { "type": "image_url", "image_url": { "url": "data:," } }] }),
        ),
        node(chain, 4, "assistant", &json!({ "role": "assistant", "content": "Done.  " })),
    ]
}

const GOLDEN: &str = "# title of c

Conversation `c`: messages that left the prompt, as the client sent them. Numbers count from 0; leading system \
messages are not counted.

## 1 · assistant

```json
{
  \"id\": \"call_1\",
  \"name\": \"read\",
  \"arguments\": {
    \"path\": \"a.md\"
  }
}
```

## 2 · tool · answers call_1

````
```rust
fn a() {}
```
````

---

*Folded: messages 1 to 2 now stand as a brief of 5 characters.*

---

## 3 · user

And this
[image_url, 49 bytes]

## 4 · assistant

Done.

---

*Folded: messages 1 to 4 now stand as a brief of 6 characters; still in full: 3.*

---

";

#[test]
fn folded_messages_are_in_the_history_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let runtime = runtime();
    let chain = chain_of(&["a", "b", "c", "d", "e"]);
    let mut batch = Batch { conversation: Some(update("c", &chain)), nodes: tools(&chain), ..Batch::default() };
    batch.view = Some((chain[4], view_of(5, vec![fold(1, 3, "brief")])));
    runtime.block_on(store.record(batch.clone())).unwrap();
    // The same fold again, with another edit, adds nothing.
    batch.view = Some((chain[4], view_of(5, vec![fold(1, 3, "brief"), text_edit(3, "x")])));
    runtime.block_on(store.record(batch.clone())).unwrap();
    let second = Edit::Fold {
        from: 1,
        to: 5,
        keep: vec![3],
        brief: "brief2".into(),
        unread: vec![],
        read: Some(5),
        struck: vec![],
    };
    batch.view = Some((chain[4], view_of(5, vec![second])));
    batch.durable = true;
    runtime.block_on(store.record(batch)).unwrap();
    assert_eq!(fs::read_to_string(store.history_path("c")).unwrap(), GOLDEN);
}

#[test]
fn a_view_is_kept_once_and_the_newest_counts() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let chain = chain_of(&["a"]);
    let runtime = runtime();
    let views = [vec![text_edit(0, "x")], vec![text_edit(0, "x"), text_edit(0, "y")], vec![text_edit(0, "x")]];
    for edits in views.iter().flat_map(|v| [v, v]) {
        let mut batch = batch("c", &["a"], 0);
        batch.view = Some((chain[0], view_of(1, edits.clone())));
        runtime.block_on(store.record(batch)).unwrap();
    }
    let count = |table| {
        let sql = format!("SELECT count(*) FROM {table}");
        store.inner.read(|c| c.query_row(&sql, [], |r| r.get::<_, i64>(0))).unwrap()
    };
    assert_eq!((count("view"), count("edit")), (3, 2));
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.view(&chain).unwrap().unwrap().1.edits, views[2]);
}

#[test]
fn a_reader_sees_what_a_server_writes() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Store::open_readonly(dir.path()), Err(Error::Missing { .. })));
    let store = Store::open(dir.path()).unwrap();
    let reader = Store::open_readonly(dir.path()).unwrap();
    runtime().block_on(store.record(batch("c", &["a"], 0))).unwrap();
    assert_eq!(reader.conversations(9).unwrap().len(), 1);
    assert_eq!(reader.locate(&chain_of(&["a"])).unwrap().unwrap().depth, 1);
    assert!(matches!(reader.record_later(Batch::default()), Err(Error::ReadOnly)));
    assert!(matches!(runtime().block_on(reader.record(Batch::default())), Err(Error::ReadOnly)));
    runtime().block_on(reader.flush());
    drop(store);
    assert_eq!(reader.messages("c").unwrap().len(), 1, "after the server has stopped");
    assert_eq!(Store::open_readonly(dir.path()).unwrap().messages("c").unwrap().len(), 1);
}

#[test]
fn an_item_is_found_by_its_id_until_its_conversation_goes() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let item =
        |text: &str| Item { id: "msg_1".into(), conversation: "c".into(), json: format!("{{\"text\":\"{text}\"}}") };
    for text in ["a", "b"] {
        let with_item = Batch { told: Told { items: vec![item(text)], reply: None }, ..batch("c", &["a", "b"], 0) };
        runtime().block_on(store.record(with_item)).unwrap();
    }
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.continued().item("msg_1").unwrap(), Some(item("b")));
    assert_eq!(store.continued().item("msg_2").unwrap(), None);
    runtime().block_on(store.prune(Retention { days: 1, bytes: 0 }, 1 << 40)).unwrap();
    assert_eq!(store.continued().item("msg_1").unwrap(), None);
}

#[test]
fn a_reply_names_the_history_that_it_answers_and_says_when_it_was_pruned() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let reply = Reply {
        id: "resp_1".into(),
        conversation: "c".into(),
        chain: *chain_of(&["a", "b"]).last().unwrap(),
        depth: 2,
        head: "{}".into(),
        json: "[]".into(),
    };
    let kept = Batch { told: Told { items: Vec::new(), reply: Some(reply.clone()) }, ..batch("c", &["a", "b"], 0) };
    runtime().block_on(store.record(kept)).unwrap();
    // The conversation goes on, and forks: the reply stands where it stood.
    runtime().block_on(store.record(batch("c", &["a", "b", "c"], 2))).unwrap();
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.continued().reply("resp_1").unwrap().as_ref(), Some(&reply));
    assert_eq!(
        (store.continued().reply("resp_2").unwrap(), store.continued().reply_gone("resp_1").unwrap()),
        (None, None)
    );
    let messages = store.messages_to(&reply.chain).unwrap();
    assert_eq!(messages, store.messages("c").unwrap()[..2].iter().map(|node| node.raw.clone()).collect::<Vec<_>>());
    assert!(store.messages_to(&Digest::of(b"another")).unwrap().is_empty());
    runtime().block_on(store.prune(Retention { days: 1, bytes: 0 }, 1 << 40)).unwrap();
    assert_eq!(store.continued().reply("resp_1").unwrap(), None);
    assert!(store.continued().reply_gone("resp_1").unwrap().is_some_and(|gone| gone.why.contains("days")));
}

#[test]
fn an_older_record_is_upgraded() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    runtime().block_on(store.record(batch("c", &["a", "b"], 0))).unwrap();
    drop(store);
    let conn = Connection::open(schema::database(dir.path())).unwrap();
    let back = "DROP TABLE kept; DROP TABLE passage; DROP TABLE told; DROP TABLE unindexed; ALTER TABLE conversation DROP COLUMN named; ALTER TABLE conversation DROP COLUMN starred; DROP TABLE reply; DROP TABLE item; DROP TABLE original_part; ALTER TABLE view DROP COLUMN bare; DROP TABLE pruned; DROP TABLE counted; DROP TABLE standing; DROP TABLE rule; DROP INDEX node_conversation; DROP INDEX conversation_parent; PRAGMA user_version = 2;";
    conn.execute_batch(back).unwrap();
    drop(conn);
    let error = Store::open_readonly(dir.path()).err().unwrap().to_string();
    let newest = schema::newest();
    assert!(
        error.contains(&format!("has schema 2, older than {newest}")) && error.contains("windowsill serve"),
        "{error}"
    );
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.messages("c").unwrap().len(), 2);
    let done = runtime().block_on(store.prune(Retention { days: 1, bytes: 0 }, 1 << 40)).unwrap();
    assert_eq!(done.messages, 2);
}

#[test]
fn rules_are_kept_changed_and_removed_and_a_number_is_never_given_twice() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let rule = |id: i64, text: &str, updated_ms| Rule {
        id,
        client: "cli".into(),
        project: "name:p".into(),
        text: text.into(),
        conversation: "c".into(),
        created_ms: 1,
        updated_ms,
    };
    let change = |change| Batch { rule: Some(change), durable: true, ..Batch::default() };
    let run = |change_| runtime().block_on(store.record(change(change_))).unwrap();
    run(RuleChange::Put(rule(1, "Use tabs.", 1)));
    run(RuleChange::Put(rule(2, "Port 8080.", 2)));
    run(RuleChange::Put(rule(1, "Use spaces.", 3)));
    assert_eq!(store.rules().unwrap(), (vec![rule(1, "Use spaces.", 3), rule(2, "Port 8080.", 2)], 2));
    run(RuleChange::Remove(2));
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.rules().unwrap(), (vec![rule(1, "Use spaces.", 3)], 2));
}

#[test]
fn a_newer_schema_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path()).unwrap());
    let path = schema::database(dir.path());
    let set = |version: i64| {
        let conn = Connection::open(&path).unwrap();
        conn.pragma_update(None, "user_version", version).unwrap();
    };
    let newest = schema::newest();
    set(newest + 3);
    let want = format!(
        "record `{}` has schema {}, and this windowsill knows schemas up to {newest}: use the newer windowsill, or another \
         `data_dir`",
        path.display(),
        newest + 3
    );
    for opened in [Store::open(dir.path()), Store::open_readonly(dir.path())] {
        assert_eq!(opened.err().unwrap().to_string(), want);
    }
    set(newest);
    drop(Store::open(dir.path()).unwrap());
    fs::write(&path, b"this is not a database, it is a text of some length").unwrap();
    let error = Store::open(dir.path()).err().unwrap().to_string();
    assert!(error.contains("windowsill.sqlite") && error.contains("not a database"), "{error}");
}

#[cfg(unix)]
#[test]
fn nobody_else_may_read() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("new/data");
    let store = Store::open(&dir).unwrap();
    let mut batch = batch("../c", &["a", "b", "c"], 0);
    batch.originals.push(original("../c", 0, "text"));
    batch.view = Some((chain_of(&["a", "b", "c"])[2], view_of(3, vec![fold(0, 2, "b")])));
    runtime().block_on(store.record(batch)).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let mut seen = 0;
    for folder in [dir.clone(), dir.join("large_tool_results"), dir.join("conversation_history")] {
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
        for file in fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).filter(|p| p.is_file()) {
            assert_eq!(mode(&file), 0o600, "{}", file.display());
            seen += 1;
        }
    }
    assert_eq!(seen, 6, "database, wal, shm, the lock, a result and a history");
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    drop(store);
    fs::set_permissions(schema::database(&dir), fs::Permissions::from_mode(0o644)).unwrap();
    drop(Store::open(&dir).unwrap());
    assert_eq!(mode(&schema::database(&dir)), 0o600);
}

#[test]
fn results_in_another_order_are_no_fork() {
    let dir = tempfile::tempdir().unwrap();
    let texts: Vec<String> = (0..40).map(|i| format!("m{i}")).collect();
    let store = Store::open(dir.path()).unwrap();
    runtime().block_on(store.record(batch("c", &texts, 0))).unwrap();
    drop(store);
    // The first results of some runs came in another order; only their ends are known by the same hash.
    for swapped in [vec![3], vec![19, 20], vec![9, 19, 38], (5..20).collect(), vec![30, 31, 32, 34, 36]] {
        // With and without what is remembered, and with more new messages than are looked at first.
        let store = Store::open(dir.path()).unwrap();
        let longer: Vec<String> = (0..60).map(|i| format!("m{i}")).collect();
        let mut chain = chain_of(&longer);
        swapped.iter().for_each(|at| chain[*at] = Digest::of(&[*at as u8]));
        for length in [60, 42, 40] {
            let located = store.locate(&chain[..length]).unwrap().unwrap();
            assert_eq!((located.depth, located.conversation.as_str()), (40, "c"), "{swapped:?}, {length} messages");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_link_to_another_programs_file_is_left_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let theirs = dir.path().join("theirs.sqlite");
    let conn = Connection::open(&theirs).unwrap();
    conn.execute_batch("CREATE TABLE bookmarks (url TEXT)").unwrap();
    drop(conn);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o644)).unwrap();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    std::os::unix::fs::symlink(&theirs, data.join("windowsill.sqlite")).unwrap();
    let error = Store::open(&data).err().unwrap();
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
    assert_eq!(mode(&theirs), 0o644);
    let text = dir.path().join("notes.txt");
    fs::write(&text, "no database at all, and long enough to be read as one").unwrap();
    fs::set_permissions(&text, fs::Permissions::from_mode(0o644)).unwrap();
    fs::remove_file(data.join("windowsill.sqlite")).unwrap();
    std::os::unix::fs::symlink(&text, data.join("windowsill.sqlite")).unwrap();
    assert!(Store::open(&data).is_err());
    assert_eq!(mode(&text), 0o644);
}

#[test]
fn earlier_views_are_looked_at_from_the_newest_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let texts = ["a", "b", "c", "d"];
    let chain = chain_of(&texts);
    let write = |depth: usize, edits: Vec<Edit>| {
        let view = Some((chain[depth - 1], view_of(depth, edits)));
        runtime().block_on(store.record(Batch { view, ..batch("c", &texts, 0) })).unwrap();
    };
    let other_than =
        |edits: &[Edit]| store.find_view(&chain, |view| view.edits != edits).unwrap().map(|view| view.edits);
    assert_eq!(other_than(&[]), None);
    let (first, second) = (vec![text_edit(1, "b")], vec![text_edit(1, "b"), text_edit(3, "d")]);
    write(2, first.clone());
    assert_eq!(other_than(&first), None, "there was none before it");
    write(4, second.clone());
    // The part of it that holds for forks comes after it, and is no view of its own.
    write(3, vec![text_edit(2, "c")]);
    assert_eq!(other_than(&second), Some(first.clone()));
    write(4, first.clone());
    assert_eq!(other_than(&first), Some(second.clone()));
    assert_eq!(
        store.find_view(&chain, |view| view.mark() == view_of(9, second.clone()).mark()).unwrap().unwrap().edits,
        second
    );
}

#[test]
fn a_page_of_messages_and_a_part_of_the_trace() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let texts = ["a", "b", "c", "d"];
    let event = |kind: &str| Event { now_ms: 1, conversation: Some("c".into()), kind: kind.into(), data: json!({}) };
    let events = vec![event("x"), event("y"), event("x")];
    runtime().block_on(store.record(Batch { events, ..batch("c", &texts, 0) })).unwrap();
    let at = |from, to| store.messages_between("c", from, to).unwrap().iter().map(|n| n.at).collect::<Vec<_>>();
    assert_eq!((at(1, 3), at(3, 99), at(4, 9), at(2, 1)), (vec![1, 2], vec![3], vec![], vec![]));
    assert_eq!(store.chain("c").unwrap(), chain_of(&texts));
    let of = EventFilter { conversation: Some("c".into()), kinds: vec!["x".into()] };
    let ids = |since| store.trace().since(since, 9, &of).unwrap().iter().map(|e| e.id).collect::<Vec<_>>();
    assert_eq!(ids(0), [1, 3]);
    assert_eq!(ids(store.trace().before(1, &of).unwrap()), [3]);
    assert_eq!(ids(store.trace().before(0, &of).unwrap()), [0; 0]);
    assert_eq!(store.trace().before(9, &of).unwrap(), 0);
    let none = EventFilter { conversation: None, kinds: vec!["\"z'".into()] };
    assert!(store.trace().since(0, 9, &none).unwrap().is_empty());
}
