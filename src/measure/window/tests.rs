//! Decisions about windows, without a server.

use super::goal::Goal;
use super::*;
use crate::measure::afford::Afforded;
use crate::measure::afford::fits::Fits;
use crate::measure::hardware::room::Room;

fn afforded(best: u32, file: &str) -> Afforded {
    let fits = Fits { gpu: None, gpu_and_ram: Some(best), best: Some(best), because: format!("{best} fit") };
    Afforded {
        fits,
        trained: 131_072,
        room: Room::default(),
        file: file.to_owned(),
        sharing: None,
        divided: false,
        whole: Some(best),
        notes: Vec::new(),
        on_gpu: None,
    }
}

fn loaded(window: u32) -> Loaded {
    Loaded { window: Some(window), asked_of: "/api/ps", identity: format!("m {window}"), ..Loaded::default() }
}

fn absent() -> Loaded {
    Loaded { provisional: true, identity: "not loaded".into(), ..Loaded::default() }
}

#[test]
fn a_little_more_or_less_room_changes_nothing() {
    let decide = |last: Option<u32>, fits: u32, now: &Loaded, file: &str| {
        let mut goal = Goal::default();
        if let Some(last) = last {
            goal.decision = Some(goal.settle_on(&afforded(last, "f"), &absent()).unwrap());
        }
        goal.settle_on(&afforded(fits, file), now).unwrap().num_ctx
    };
    let cases = [
        // Nothing decided yet: what fits, unless what is loaded is near it.
        (None, 32_768, absent(), 32_768),
        (None, 32_768, loaded(4096), 32_768),
        (None, 32_768, loaded(28_672), 28_672),
        (None, 32_768, loaded(33_024), 33_024),
        (None, 32_768, loaded(65_536), 32_768),
        // Decided before: it stands, while it roughly fits and not much more would.
        (Some(32_768), 30_208, absent(), 32_768),
        (Some(32_768), 40_704, absent(), 32_768),
        (Some(32_768), 29_184, absent(), 29_184),
        (Some(32_768), 65_536, absent(), 65_536),
    ];
    for (last, fits, now, want) in cases {
        assert_eq!(decide(last, fits, &now, "f"), want, "{last:?} {fits} {:?}", now.window);
    }
    assert_eq!(decide(Some(32_768), 30_208, &absent(), "another file"), 30_208);
    let mut none = afforded(1, "f");
    none.fits.best = None;
    assert_eq!(Goal::default().settle_on(&none, &absent()), Err("1 fit".to_owned()));
}

#[test]
fn what_is_loaded_as_asked_needs_no_load() {
    let trained = |window, trained| Loaded { trained: Some(trained), ..loaded(window) };
    let cases = [
        // Another program may have named its window, and a request that names none has another.
        (None, loaded(4096), false),
        (None, absent(), false),
        (Some(4096), loaded(4096), true),
        (Some(8192), loaded(4096), false),
        // Clamped to the trained length, which asking again does not change.
        (Some(8192), trained(4096, 4096), true),
        (Some(8192), trained(2048, 4096), false),
    ];
    for (set, now, want) in cases {
        let goal = Goal { set, ..Goal::default() };
        assert_eq!(goal.holds(&now), want, "{set:?} {now:?}");
    }
    let mut goal = Goal { set: Some(8192), ..Goal::default() };
    goal.settle(&loaded(4096));
    assert!(goal.holds(&loaded(4096)), "the server could do no more, and is not asked again");
    let mut goal = Goal::default();
    goal.settle(&loaded(4096));
    assert!(
        goal.holds(&loaded(4096)) && !goal.holds(&loaded(256)),
        "what the server did by itself is known from then on"
    );
}

#[test]
fn another_program_is_put_right_once_and_then_let_be() {
    let mut goal = Goal::default();
    goal.decision = Some(goal.settle_on(&afforded(32_768, "f"), &absent()).unwrap());
    assert_eq!(goal.insist(&loaded(4096)), Some(32_768));
    assert_eq!(goal.insist(&loaded(4096)), Some(4096), "reloading back and forth helps nobody");
    assert!(goal.because().contains("another program"), "{}", goal.because());
}

#[test]
fn a_change_is_told_with_its_reason() {
    let window = |tokens: u32| Window {
        tokens: Some(tokens),
        source: String::new(),
        set: None,
        trained: Some(8192),
        template: None,
        model_path: None,
        parameters: None,
        takes: Takes::default(),
        identity: String::new(),
        changed: None,
    };
    let entry = |set: Option<u32>, found: Option<u32>| Entry {
        loaded: Loaded::default(),
        at: None,
        learned: None,
        answered: 0,
        refused: None,
        goal: Goal { set, found, ..Goal::default() },
    };
    let told = |before: Option<u32>, now: u32, set, found| {
        change(before.map(window).as_ref(), &window(now), &entry(set, found))
    };
    assert_eq!(told(None, 4096, None, None), None, "there was none before");
    assert_eq!(told(Some(4096), 4096, Some(4096), None), None);
    assert_eq!(told(None, 4096, Some(4096), None), None);
    let why = |said: Option<Change>| said.expect("told").why;
    assert!(why(told(None, 4096, Some(6000), None)).contains("smaller window than was asked for"));
    assert!(why(told(None, 8192, Some(99_999), None)).contains("trained for no more"));
    let change = told(Some(8192), 8192, Some(8192), Some(2048)).expect("told");
    assert_eq!((change.was, change.found, change.now), (Some(8192), Some(2048), Some(8192)));
    assert!(change.why.contains("2048 tokens, and it was loaded again"), "{change:?}");
    assert!(why(told(Some(8192), 2048, Some(2048), Some(2048))).contains("left so"));
    assert!(why(told(Some(8192), 4096, None, None)).contains("anew"));
}

#[test]
fn what_a_refusal_taught_holds_for_minutes_and_never_below_what_was_answered() {
    let client = crate::upstream::client().unwrap();
    let upstream = |hint| Upstream::new(client.clone(), "up".into(), "http://127.0.0.1:9", hint).unwrap();
    let other = upstream(crate::upstream::KindHint::OpenAi);
    let windows = Windows::default();
    windows.entries.lock().insert(key(&other, "m"), Entry::unasked());
    let known = || window(&windows.entries.lock()[&key(&other, "m")], &NumCtx::Loaded).tokens;
    assert!(windows.learn(&other, "m", 2048, false));
    assert_eq!(known(), Some(2048));
    assert!(!windows.learn(&other, "m", 2048, false), "that is no news");
    windows.answered(&other, "m", 500);
    assert_eq!(known(), Some(2048));
    // An answer to more shows that it was none; and a smaller one is not learned from then on.
    windows.answered(&other, "m", 3000);
    assert_eq!(known(), None);
    assert!(!windows.learn(&other, "m", 64, false) && !windows.learn(&other, "m", 3000, true));
    assert_eq!(known(), None);
    assert!(windows.learn(&other, "m", 4096, false));
    assert_eq!(known(), Some(4096));
    let learned = windows.entries.lock()[&key(&other, "m")].learned.clone().unwrap();
    assert!(learned.holds(learned.at + LEARNED - Duration::from_secs(1)) && !learned.holds(learned.at + LEARNED));
}
