//! What a search finds, in which order, and whose.

use proptest::prelude::*;

use super::*;

#[test]
fn search_ranks_the_phrase_first_and_shows_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let filler = "filler line\n".repeat(20_000);
    let texts = [
        "disk quota, and later: exceeded".to_owned(),
        format!("{filler}ERROR: disk quota exceeded (os error 122)\n{filler}"),
        "see src/store/mod.rs:12 — fn open_reader()".to_owned(),
        "数据库文件已损坏,请重试".to_owned(),
        "Crème brûlée".to_owned(),
    ];
    let originals = texts.iter().enumerate().map(|(at, t)| original("c", at, t)).collect();
    runtime().block_on(store.record(Batch { originals, ..Batch::default() })).unwrap();
    let hits = store.search("disk quota exceeded", None, 10).unwrap();
    let found: Vec<(usize, bool)> = hits.iter().map(|h| (h.at, h.exact)).collect();
    assert_eq!(found, [(1, true), (0, false)]);
    assert!(hits[0].snippet.contains("ERROR: disk quota exceeded (os error 122)"));
    assert!(hits[0].snippet.starts_with('…') && hits[0].snippet.ends_with('…') && hits[0].snippet.len() < 800);
    assert_eq!(hits[0].id.as_deref(), Some(&*original_id(&texts[1])));
    let cases: [(&str, &[usize]); 8] = [
        ("src/store/mod.rs", &[2]),
        ("open_read", &[2]),
        ("损坏", &[3]),
        ("creme", &[4]),
        ("OS ERROR", &[1]),
        ("quota", &[0, 1]),
        ("***", &[]),
        ("nowhere", &[]),
    ];
    for (query, want) in cases {
        let mut got: Vec<usize> = store.search(query, None, 10).unwrap().into_iter().map(|h| h.at).collect();
        got.sort_unstable();
        assert_eq!(got, want, "{query}");
    }
    assert_eq!(store.search("quota", None, 1).unwrap().len(), 1);
}

#[test]
fn what_stands_as_it_is_written_comes_first() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let texts = [
        "foo bar baz, foo bar baz, foo bar baz",
        "calls foo_bar::baz(1) once, in a much longer text about many other things altogether",
        "C c C c, the letter",
        "written in C++ long ago, as so much else that still runs today on one machine or another",
        "the disk is full; the quota is not exceeded",
        "the disk  quota\nof user 7 was exceeded",
        "ไม่สามารถเปิดแฟ้มข้อมูลได้",
        "データベースを開けません",
        "데이터베이스를 열 수 없습니다",
    ];
    let originals = texts.iter().enumerate().map(|(at, t)| original("c", at, t)).collect();
    runtime().block_on(store.record(Batch { originals, ..Batch::default() })).unwrap();
    let cases: [(&str, &[usize]); 10] = [
        ("foo_bar::baz", &[1, 0]),
        ("FOO_BAR::BAZ(1)", &[1]),
        ("C++", &[3, 2]),
        ("disk quota", &[5, 4]),
        ("\"disk quota\" exceeded", &[5, 4]),
        ("exceeded \"disk quota", &[5, 4]),
        ("แฟ้มข้อมูล", &[6]),
        ("ベース", &[7]),
        ("데이터베이스", &[8]),
        ("machine AND another", &[3]),
    ];
    for (query, want) in cases {
        let got: Vec<usize> = store.search(query, Some("c"), 10).unwrap().into_iter().map(|h| h.at).collect();
        assert_eq!(got[..want.len().min(got.len())], *want, "{query}: {got:?}");
    }
    assert_eq!(store.search("foo_bar::baz", None, 1).unwrap()[0].at, 1, "also where only one is asked for");
}

#[test]
fn a_query_that_matches_everything_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let texts: Vec<String> = (0..3_000).map(|n| format!("the file number {n} of the lot")).collect();
    runtime().block_on(store.record(batch("c", &texts, 0))).unwrap();
    let hits = store.search("the file", Some("c"), 300).unwrap();
    assert_eq!(hits.len(), 300);
    assert!(hits.iter().all(|h| h.exact && h.snippet.starts_with("the file number")));
    assert_eq!(store.search("number 2999 the", Some("c"), 5).unwrap()[0].at, 2999);
    assert_eq!(store.search("the", None, 0).unwrap(), []);
}

#[test]
fn a_shared_original_is_never_shown_by_another_conversations_call() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let runtime = runtime();
    // The same text, recorded first by a conversation that has nothing to do with the others.
    let call = |c: &str, at, call: &str| Original { call: Some(call.into()), ..original(c, at, "walnut boards") };
    for (id, texts, at, made, parent) in [
        ("x", ["other", "secret", "x2"], 0, "read(secret/place)", None),
        ("a", ["apple", "banana", "cherry"], 1, "read(shared)", None),
        ("b", ["apple", "banana", "damson"], 9, "", Some(("a".to_owned(), 2))),
    ] {
        let mut batch = batch(id, &texts, 0);
        batch.conversation.as_mut().unwrap().parent = parent;
        batch.originals = (at < 9).then(|| call(id, at, made)).into_iter().collect();
        runtime.block_on(store.record(batch)).unwrap();
    }
    for (scope, owner, made) in
        [("b", "a", "read(shared)"), ("a", "a", "read(shared)"), ("x", "x", "read(secret/place)")]
    {
        let hits = store.search("walnut", Some(scope), 5).unwrap();
        let shown: Vec<_> = hits.iter().map(|h| (h.conversation.as_str(), h.call.as_deref().unwrap())).collect();
        assert_eq!(shown, [(owner, made)], "{scope}");
    }
}

#[test]
fn no_query_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    runtime().block_on(store.record(batch("c", &["a \"quoted\" text, NEAR and far: x*"], 0))).unwrap();
    let odd = [
        "\"",
        "a\"b",
        "NEAR(a b)",
        "a AND",
        "OR",
        "NOT a",
        "text:x",
        "-a",
        "a*",
        "^a",
        "{a b}:c",
        "(",
        "a\0b",
        "+",
        "''",
    ];
    for query in odd {
        store.search(query, None, 5).unwrap();
        store.search(query, Some("c"), 5).unwrap();
    }
    for query in ["\"quoted\"", "x*", "NEAR and", "far: x"] {
        assert_eq!(store.search(query, Some("c"), 5).unwrap().len(), 1, "{query}");
    }
    proptest!(ProptestConfig::with_cases(300), |(query in any::<String>(), limit in 0..3usize)| {
        store.search(&query, None, limit).unwrap();
    });
    store.search(&"word \u{10ffff} ".repeat(5000), None, 5).unwrap();
}

/// A chat: short messages, stamped now and then, and a long one.
fn talk() -> Vec<String> {
    let mut texts: Vec<String> = (0..60).map(|n| format!("Small talk number {n}, of no use.")).collect();
    texts[20] = "[2024-05-01 10:00] Which color did we paint the porch?".into();
    texts[21] = "Teal, in two coats.".into();
    texts[40] =
        format!("[9 June 2024] Read this.\n\n{}The porch railing rotted.\n\n{0}", "A paragraph of filler. ".repeat(40));
    texts
}

fn shown(store: &Store, query: &str, scope: Option<&str>) -> Vec<Vec<(usize, Option<String>)>> {
    let found = store.passages(query, scope, 9, &mut |_| true).unwrap();
    found.into_iter().map(|one| one.said.into_iter().map(|hit| (hit.at, hit.date)).collect()).collect()
}

#[test]
fn a_passage_has_its_neighbors_and_the_date_that_the_client_put_above_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    runtime().block_on(store.record(batch("c", &talk(), 0))).unwrap();
    let found = store.passages("what color was the porch painted", Some("c"), 9, &mut |_| true).unwrap();
    let best = &found[0];
    assert_eq!(best.said[best.center].at, 20);
    // The answer holds none of the words: it stands beside them.
    assert!(best.said.iter().any(|hit| hit.text.starts_with("Teal")), "{best:?}");
    assert!(best.said.iter().map(|hit| hit.text.len()).sum::<usize>() <= 600);
    let date = |at: usize| best.said.iter().find(|hit| hit.at == at).unwrap().date.clone();
    assert_eq!((date(19).unwrap(), date(21).unwrap()), ("1970-01-01".into(), "2024-05-01 10:00".into()));
    // Of a long message, the part that says it.
    let hit = &store.search("railing rotting", Some("c"), 1).unwrap()[0];
    assert!(hit.text.contains("railing rotted") && hit.span.0 > 0 && hit.goes_on, "{hit:?}");
    assert_eq!((hit.at, hit.date.as_deref()), (40, Some("9 June 2024")));
    // What may not be shown is not shown beside something else, either.
    let found = store.passages("porch painted", Some("c"), 9, &mut |hit| hit.at != 21).unwrap();
    assert!(found.iter().flat_map(|one| &one.said).all(|hit| hit.at != 21));
    // Neighbors are those of the same history.
    let mut other = talk();
    other[21] = "Red, said the other history.".into();
    let mut fork = batch("f", &other, 21);
    fork.conversation.as_mut().unwrap().parent = Some(("c".into(), 21));
    runtime().block_on(store.record(fork)).unwrap();
    let of = |scope| format!("{:?}", store.passages("porch painted color", Some(scope), 9, &mut |_| true).unwrap());
    assert!(!of("c").contains("Red, said") && !of("f").contains("Teal"));
    assert!(of("f").contains("Which color"));
}

#[test]
fn a_fork_finds_nothing_of_another_branch_of_what_it_forked_from() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let runtime = runtime();
    // The client said something else in the place of a message; both are the same conversation's.
    let mut secret = batch("a", &["walnut one", "walnut two", "walnut secret"], 0);
    secret.originals = vec![original("a", 2, "walnut original of the secret")];
    runtime.block_on(store.record(secret)).unwrap();
    runtime.block_on(store.record(batch("a", &["walnut one", "walnut two", "walnut open"], 2))).unwrap();
    let mut fork = batch("b", &["walnut one", "walnut two", "walnut open", "walnut fork"], 3);
    fork.conversation.as_mut().unwrap().parent = Some(("a".into(), 3));
    runtime.block_on(store.record(fork)).unwrap();
    let of = |scope| -> Vec<String> {
        let mut all: Vec<String> =
            store.search("walnut", Some(scope), 9).unwrap().into_iter().map(|h| h.text).collect();
        all.sort();
        all
    };
    assert_eq!(of("b"), ["walnut fork", "walnut one", "walnut open", "walnut two"]);
    // The original is one with the messages at its place; none of these is lost.
    assert_eq!(of("a"), ["walnut one", "walnut open", "walnut secret", "walnut two"]);
}

#[test]
fn texts_that_stand_at_one_place_are_all_found() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let section = |text: &str| Original { kind: "system".into(), ..original("c", 0, text) };
    let originals = vec![section("Walnut is oiled."), section("Walnut is never painted.")];
    runtime().block_on(store.record(Batch { originals, ..batch("c", &["hello"], 0) })).unwrap();
    assert_eq!(store.search("walnut", Some("c"), 9).unwrap().len(), 2);
}

#[test]
fn what_an_older_windowsill_recorded_is_searched_after_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let mut all = batch("c", &talk(), 0);
    all.originals = vec![original("c", 3, &format!("{}walnut boards\n", "a line of a log\n".repeat(50_000)))];
    runtime().block_on(store.record(all)).unwrap();
    runtime().block_on(store.record(batch("d", &["nothing but a porch", "yes"], 0))).unwrap();
    let queries = ["what color was the porch painted", "railing", "walnut", "number 7", "porch"];
    let see = |store: &Store| -> Vec<_> {
        queries.iter().flat_map(|query| [shown(store, query, Some("c")), shown(store, query, None)]).collect()
    };
    let before = see(&store);
    assert!(before.iter().all(|found| !found.is_empty()));
    drop(store);
    let conn = Connection::open(schema::database(dir.path())).unwrap();
    let back = "DROP TABLE kept; DROP TABLE passage; DROP TABLE told; DROP TABLE unindexed; ALTER TABLE conversation DROP COLUMN named; ALTER TABLE conversation DROP COLUMN starred; PRAGMA user_version = 9;";
    conn.execute_batch(back).unwrap();
    drop(conn);
    let store = Store::open(dir.path()).unwrap();
    // Meanwhile it is used as ever.
    runtime().block_on(store.record(batch("e", &["a zebra", "striped"], 0))).unwrap();
    assert_eq!(store.search("zebra", None, 9).unwrap().len(), 1);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while store.unindexed().unwrap() > 0 {
        assert!(std::time::Instant::now() < until, "never indexed");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(see(&store), before);
    // Once is enough, also after a restart.
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    runtime().block_on(store.flush());
    assert_eq!((see(&store), store.unindexed().unwrap()), (before, 0));
}

#[test]
fn rare_words_paths_and_stems_find_what_is_meant() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let mut texts: Vec<String> = (0..200).map(|n| format!("We talked about the table and the chairs, {n}.")).collect();
    texts[50] = "The walnut came from Ohio.".into();
    texts[60] = "see crates/record/src/search.rs, fn getUserName".into();
    texts[70] = "error in record src search, rs: get user name".into();
    texts[80] = "我们讨论了数据库的备份".into();
    texts[90] = "They were refinishing furniture.".into();
    runtime().block_on(store.record(batch("c", &texts, 0))).unwrap();
    for (query, best) in [
        ("what about the walnut table and the chairs", 50),
        ("what is in crates/record/src/search.rs of the table", 60),
        ("getUserName", 60),
        ("user_name", 70),
        ("数据库备份", 80),
        ("refinished", 90),
        ("\"came from\" the table", 50),
    ] {
        assert_eq!(store.search(query, Some("c"), 5).unwrap()[0].at, best, "{query}");
        assert_eq!(store.search(query, None, 5).unwrap()[0].at, best, "{query}, everywhere");
    }
}

/// The words stand everywhere, and in this row once: that is what was meant, also where a longer conversation comes behind.
#[test]
fn common_words_in_a_row_are_found_in_their_conversation() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    for id in ["a", "b", "c"] {
        let mut texts: Vec<String> = (0..400).map(|n| format!("to the end and of it {n}")).collect();
        texts[0] = id.into();
        texts[350] = "and to the end of it".into();
        if id == "c" {
            texts[350] = "the end of the talk".into();
        }
        runtime().block_on(store.record(batch(id, &texts, 0))).unwrap();
    }
    let best = |id: &str| {
        let found = store.search("and to the end of it", Some(id), 3).unwrap();
        (found[0].at, found[0].exact)
    };
    assert_eq!((best("a"), best("b")), ((350, true), (350, true)));
    assert!(!best("c").1, "it stands in others alone");
}
