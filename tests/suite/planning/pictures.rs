//! Single cases: every rule, its line, and its exceptions.

use windowsill::plan::{Action, Plan, plan};

use super::{harness, picture};

/// Plans a picture, says the plan, and checks on the way all that must hold for any plan.
fn check(picture: &str, expect: &str) -> Result<(), String> {
    let case = picture::read(picture);
    let pass =
        harness::check(&case.conversation, &case.facts, &case.policy).map_err(|e| format!("{picture}\n  {e}"))?;
    let got = picture::say(&pass.plan);
    if got == expect { Ok(()) } else { Err(format!("{picture}\n  expected {expect}\n  got      {got}")) }
}

fn check_all(cases: &[(&str, &str)]) {
    let wrong: Vec<String> = cases.iter().filter_map(|(p, e)| check(p, e).err()).collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn nothing_to_do() {
    check_all(&[
        ("window 1000 reserve 100 |", "nothing (0 -> 0)"),
        ("window 1000 reserve 100 | sys:100 user:50 asst:20 user:30", "nothing (200 -> 200)"),
        // Just at the clearing line: 0.6 * 1000 - 100 = 500.
        ("window 1000 reserve 100 keep 2 | sys:100 user:50 call:20 result:300 asst:10 user:20", "nothing (500 -> 500)"),
        // One past it.
        ("window 1000 reserve 100 keep 2 | sys:100 user:50 call:20 result:300 asst:10 user:21", "clear 2 (501 -> 361)"),
    ]);
}

#[test]
fn evict() {
    check_all(&[
        // On arrival: the newest result too, since nothing before it changes.
        ("window 4000 reserve 100 evict 1000 | sys:100 user:50 call:20 result:1340", "evict 2 to 1000 (1510 -> 1170)"),
        ("window 4000 reserve 100 evict 1000 | sys:100 user:50 call:20 result:1000", "nothing (1170 -> 1170)"),
        // A preview of nearly all of it saves too little, where there is room for it short of the clearing line.
        ("window 4000 reserve 100 evict 1000 | sys:100 user:50 call:20 result:1330", "nothing (1500 -> 1500)"),
        ("window 2000 reserve 100 evict 1000 | sys:100 user:50 call:20 result:1330", "evict 2 to 930 (1500 -> 1100)"),
        // Not later: what was forwarded whole stays whole until clearing.
        (
            "window 4000 reserve 100 evict 1000 forwarded 3 | sys:100 user:50 call:20 result:1340",
            "nothing (1510 -> 1510)",
        ),
        // Arguments as well, each call for itself.
        (
            "window 4000 reserve 100 evict 1000 | sys:100 user:50 call:1200+20 result:50 result:60",
            "elide 1.0 to 256 (1480 -> 540)",
        ),
        // Tools that must not be touched.
        ("window 4000 reserve 100 evict 1000 never note | user:50 call:20@notes result:1500", "nothing (1570 -> 1570)"),
        // A system message further down is tool output.
        ("window 4000 reserve 100 evict 1000 | sys:100 user:50 asst:10 sys:1500", "evict 2 to 1000 (1660 -> 1160)"),
        // Pasted output in an older user message, from twice the size, where the prompt passes the window.
        (
            "window 2600 reserve 100 evict 1000 | user:50 asst:10 user:2500 asst:10 user:5",
            "evict 2 to 256 (2575 -> 331)",
        ),
        // While it fits, what a person's client says is left alone: aider sends its files so.
        ("window 3200 reserve 100 evict 1000 | user:50 asst:10 user:2500 asst:10 user:5", "nothing (2575 -> 2575)"),
        ("window 8000 reserve 100 evict 1000 | user:50 asst:10 user:1500 asst:10 user:5", "nothing (1575 -> 1575)"),
        // The last user message is the request itself.
        ("window 8000 reserve 100 evict 1000 | user:50 asst:10 user:2500", "nothing (2560 -> 2560)"),
        // A share that would cost as much as the preview does not count.
        ("window 8000 reserve 100 evict 10 | user:50 call:20 result:150", "nothing (220 -> 220)"),
    ]);
}

#[test]
fn clear() {
    check_all(&[
        // Oldest first, down to 0.4 * 1000 - 100 = 300, nothing newer than keep_recent.
        (
            "window 1000 reserve 100 keep 2 | sys:100 user:20 call:20 result:150 call:20 result:150 call:20 result:150",
            "clear 2; clear 4 (630 -> 510)",
        ),
        // A step is never taken apart: keep 1 keeps the call too.
        (
            "window 1000 reserve 100 keep 1 | sys:100 user:20 call:20 result:200 call:20 result:300",
            "clear 2 (660 -> 550)",
        ),
        // Parallel results of the newest step are kept together.
        (
            "window 1000 reserve 100 keep 1 | sys:100 user:20 call:20+20+20 result:150 result:150 result:150",
            "nothing (630 -> 630)",
        ),
        // It must free more than it makes the server evaluate again.
        (
            "window 1000 reserve 100 keep 2 forwarded 8 | user:20 call:20 result:150 asst:200 user:100 asst:20 user:20",
            "nothing (530 -> 530)",
        ),
        (
            "window 1000 reserve 100 keep 2 forwarded 3 | user:20 call:20 result:350 asst:50 user:100 asst:20 user:20",
            "nothing (580 -> 580)",
        ),
        // Near the clear line an edit must free several times what it costs; nearer the wall, as much is enough.
        (
            "window 1000 reserve 100 keep 2 forwarded 3 | user:20 call:20 result:550 asst:50 user:100 asst:20 user:20",
            "fold 1..4 into 125 without a model (780 -> 329)",
        ),
        // Protected tools.
        (
            "window 1000 reserve 100 keep 2 never note | user:20 call:20@notes result:300 call:20 result:200 asst:20 user:20",
            "nothing (600 -> 600)",
        ),
        // Small results are not worth it; arguments are, when long.
        (
            "window 1000 reserve 100 keep 2 | user:20 call:300 result:100 call:20 result:100 asst:20 user:20",
            "elide 1.0 to 120 (580 -> 404)",
        ),
        // What was cleared earlier stays, and is not cleared again.
        (
            "window 1000 reserve 100 keep 2 | user:20 call:20 result:300~clear=30 call:20 result:430 asst:20 user:20",
            "clear 4 (560 -> 333)",
        ),
        // An earlier version of a file goes before an older result that nothing has replaced.
        (
            "window 3000 reserve 200 keep 2 | sys:10 user:20 call:20@a result:130 call:20@b result:1300 call:20@b result:655",
            "clear 4 (2175 -> 965)",
        ),
        // A preview may be cleared later on.
        (
            "window 1000 reserve 100 keep 2 | user:20 call:20 result:900~evict=200 call:20 result:230 asst:20 user:20",
            "clear 2; clear 4 (530 -> 342)",
        ),
    ]);
}

#[test]
fn repeat_and_restore() {
    check_all(&[
        // Fifty-one times the same result: fifty pointers.
        (
            "window 9000 reserve 100 | user:20 51*(call:20 result:130@same)",
            "repeat 4 of 2 … 102 of 2 (50 of them) (7670 -> 3170)",
        ),
        // Not while the window is nearly empty.
        ("window 90000 reserve 100 | user:20 3*(call:20 result:130@same)", "nothing (470 -> 470)"),
        // Only what arrives: an old repetition stays as it was sent.
        (
            "window 2000 reserve 100 forwarded 5 | user:20 call:20 result:230@same call:20 result:230@same asst:20 call:20 result:230@same",
            "repeat 7 of 2 (790 -> 600)",
        ),
        // The first one was cleared: there is nothing to point at.
        (
            "window 2000 reserve 100 | user:20 call:20 result:500@same~clear=30 asst:500 call:20 result:230@same",
            "nothing (820 -> 820)",
        ),
        // A client's stub about a result that was cleared gets it back, where there is room; about one that stands, nothing.
        (
            "window 2000 reserve 100 | user:20 call:20@a result:500~clear=30 asst:20 call:20@a stub:20",
            "restore 5 of 2 in full (130 -> 690)",
        ),
        // Up to the line at which clearing starts, 0.6 * 2000 - 100 = 1100.
        (
            "window 2000 reserve 100 | user:430 call:20@a result:500~clear=30 asst:20 call:20@a stub:20",
            "restore 5 of 2 in full (540 -> 1100)",
        ),
        (
            "window 2000 reserve 100 | user:431 call:20@a result:500~clear=30 asst:20 call:20@a stub:20",
            "restore 5 of 2 (541 -> 601)",
        ),
        // Not what would be evicted if it came by itself.
        (
            "window 2000 reserve 100 evict 500 | user:20 call:20@a result:501~evict=100 asst:20 call:20@a stub:20",
            "restore 5 of 2 (200 -> 260)",
        ),
        // What came back is old some day: the stub and the pointer stay, and only once.
        (
            "window 1000 reserve 100 keep 2 | user:20 call:20@a result:200~clear=30 call:20@a stub:20~restore=280 asst:20 user:130",
            "restore 4 of 2 (520 -> 320)",
        ),
        (
            "window 1000 reserve 100 keep 2 | user:20 call:20@a result:200~clear=30 call:20@a stub:20~restore=80 asst:20 user:331",
            "nothing (521 -> 521)",
        ),
        ("window 2000 reserve 100 | user:20 call:20@a result:500 asst:20 call:20@a stub:20", "nothing (600 -> 600)"),
        // About one that was folded away.
        (
            "window 2000 reserve 100 | fold:1..4=90 user:20 call:20@a result:500 asst:20 call:20@a stub:20",
            "restore 5 of 2 in full (162 -> 722)",
        ),
        // About another file.
        (
            "window 2000 reserve 100 | user:20 call:20@a result:500~clear=30 asst:20 call:20@b stub:20",
            "nothing (130 -> 130)",
        ),
        // About one that leaves the view right now: what follows is evaluated again anyway.
        (
            "window 1000 reserve 100 keep 3 forwarded 1 | user:20 call:20@a result:500 call:20@a stub:20 asst:20 user:20",
            "clear 2; restore 4 of 2 (620 -> 406)",
        ),
    ]);
}

#[test]
fn summarize() {
    check_all(&[
        // At 0.85 * 1000 - 100 = 750, down to 0.45 * 1000 - 100 = 350.
        ("window 1000 reserve 100 keep 2 | sys:100 user:50 asst:250 user:250 asst:50 user:50", "nothing (750 -> 750)"),
        ("window 1000 reserve 100 keep 2 | sys:100 user:50 asst:250 user:250 asst:50 user:51", "nothing (751 -> 751)"),
        ("window 4000 reserve 100 | sys:100 user:50 19*(asst:83 user:83)", "fold 1..28 into 500 (3304 -> 1607)"),
        // Folding may wait for the wall.
        (
            "window 1000 reserve 100 keep 2 wall | sys:100 user:50 asst:250 user:250 asst:50 user:51",
            "nothing (751 -> 751)",
        ),
        (
            "window 1000 reserve 100 keep 2 wall | sys:100 user:50 asst:250 user:150 asst:150 user:201",
            "fold 1..3 into 125 without a model (901 -> 638)",
        ),
        // What is recent stays; when folding cannot go deep because of it, it waits for the wall.
        (
            "window 1000 reserve 100 keep 2 | sys:100 user:50 asst:150 user:150 asst:150 user:151",
            "nothing (751 -> 751)",
        ),
        (
            "window 1000 reserve 100 keep 2 | sys:100 user:50 asst:150 user:150 asst:250 user:201",
            "fold 1..4 into 125 without a model (901 -> 520)",
        ),
        // Without a model.
        (
            "window 1000 reserve 100 keep 2 strategy truncate wall | sys:100 user:50 asst:250 user:250 asst:50 user:51",
            "nothing (751 -> 751)",
        ),
        // Never, even when that means to refuse.
        (
            "window 1000 reserve 100 keep 2 strategy off | sys:100 user:50 asst:350 user:150 asst:250 user:151",
            "refused; nothing (1051 -> 1051)",
        ),
        // One user turn of two hundred steps: the user message is the anchor and stays.
        (
            "window 4000 reserve 100 wall | sys:100 user:50 200*(call:20 result:60)",
            "fold 1..355 into 500 (16150 -> 2502)",
        ),
        // Two turns, the second one long: its user message is kept inside the fold.
        (
            "window 4000 reserve 100 wall | sys:100 user:50 asst:20 user:70 150*(call:20 result:60)",
            "fold 1..259 keep 2 into 500 (12240 -> 2524)",
        ),
        // A new fold folds the old one on.
        (
            "window 1000 reserve 100 keep 2 | fold:1..4=100 sys:100 user:50 asst:150 user:150 asst:150 user:100 asst:150 user:150 asst:150 user:100",
            "fold 1..7 into 125 (944 -> 537)",
        ),
        // A huge first user message is folded with the rest once it is not the last.
        (
            "window 1000 reserve 100 keep 2 | sys:50 user:400 asst:100 user:150 asst:100 user:50",
            "fold 0..3 into 125 without a model (850 -> 337)",
        ),
        // It is the last: it stays.
        ("window 1000 reserve 100 keep 2 | sys:50 user:400 5*(call:20 result:60)", "nothing (850 -> 850)"),
        // No user message at all; an assistant first.
        ("window 1000 reserve 100 keep 2 | sys:50 12*(asst:80)", "fold 0..8 into 125 without a model (1010 -> 507)"),
        (
            "window 1000 reserve 100 keep 2 | sys:50 asst:100 user:100 asst:200 user:200 asst:200 user:20",
            "fold 0..4 into 125 without a model (870 -> 407)",
        ),
        // Thousands of messages of one role.
        ("window 4000 reserve 100 wall | sys:50 1000*(user:30)", "fold 1..936 into 500 (30050 -> 2544)"),
        // A turn's border is a better place than the middle of a step.
        (
            "window 2000 reserve 100 keep 2 | user:50 12*(call:20 result:100) asst:20 user:50 call:20 result:100 call:20 result:100",
            "fold 1..26 into 250 (1800 -> 634)",
        ),
    ]);
}

#[test]
fn at_the_wall() {
    check_all(&[
        // The newest result alone passes the window.
        ("window 1000 reserve 100 | sys:50 user:50 call:20 result:3000", "evict 2 to 380 (3120 -> 500)"),
        // Many parallel results together do.
        (
            "window 1000 reserve 100 | sys:50 user:50 call:20+20+20 result:500 result:500 result:20",
            "shorten 2 to 360; shorten 3 to 360 (1180 -> 900)",
        ),
        // So many that not even a word of each fits.
        (
            "window 1000 reserve 100 | sys:50 user:50 call:15+15+15+15+15+15+15+15+15+15+15+15+15+15+15+15+15+15+15+15 20*(result:50)",
            "fold 1..22 into 96 (1400 -> 208)",
        ),
        // The last user message alone.
        ("window 1000 reserve 100 | sys:50 user:3000", "cut 0 to 850 (3050 -> 900)"),
        ("window 1000 reserve 100 | sys:50 user:100 asst:50 user:3000", "cut 2 to 700 (3200 -> 900)"),
        ("window 1000 reserve 100 | sys:50 user:3000 call:20 result:50", "cut 0 to 430 (3120 -> 550)"),
        // Only one message, and it is not the user's.
        ("window 1000 reserve 100 | asst:3000", "shorten 0 to 900 (3000 -> 900)"),
        ("window 1000 reserve 100 | sys:3000", "refused; nothing (3000 -> 3000)"),
        // System prompt and tools leave nothing.
        ("window 1000 reserve 100 | sys:500 tools:500 user:50", "refused; nothing (1050 -> 1050)"),
        (
            "window 1000 reserve 100 | sys:400 tools:480 user:200 asst:100 user:100",
            "refused; shorten 0 to 48; shorten 1 to 48 (1280 -> 1076)",
        ),
        // The smallest window: a line for what was before, and the end of what is asked.
        (
            "window 128 reserve 16 | sys:38 user:20 asst:12 user:20 asst:12 user:1900",
            "fold 0..5 keep 4 into 0 without a model; cut 4 to 74 (2002 -> 112)",
        ),
        // Arguments of the newest call.
        ("window 1000 reserve 100 | sys:50 user:50 call:2000 result:50", "elide 1.0 to 256 (2150 -> 410)"),
        // Media that cannot be kept, and media of the last user message.
        (
            "window 1000 reserve 100 | sys:50 user:50 asst:20 image:350 asst:20 image:350 asst:20 image:350",
            "fold 1..6 into 125 without a model (1210 -> 619)",
        ),
        // Strategy off cuts results, never the user's words.
        ("window 1000 reserve 100 strategy off | sys:50 user:50 call:20 result:3000", "evict 2 to 380 (3120 -> 500)"),
        ("window 1000 reserve 100 strategy off | sys:50 user:500 asst:500 user:300", "refused; nothing (1350 -> 1350)"),
        // A protected result is cut only when nothing else is left.
        (
            "window 1000 reserve 100 never note | sys:50 user:50 call:20@notes result:500 call:20 result:500",
            "fold 1..3 into 125 without a model (1140 -> 757)",
        ),
        (
            "window 1000 reserve 100 never note | sys:50 user:50 call:20@notes result:3000",
            "shorten 2 to 780 (3120 -> 900)",
        ),
        // Many small messages behind the last user message, none of which can be cut.
        (
            "window 500 reserve 100 strict | user:20 40*(call:15 result:12) user:20 asst:10 user:20",
            "fold 1..77 into 96 without a model (1162 -> 268)",
        ),
    ]);
}

/// Claude Code, Kimi Code and Codex put reminders and rules into user messages: what a person asked stays, wherever it stands.
#[test]
fn what_a_person_asked_stays() {
    check_all(&[
        // A reminder at the end is not the request: the first message stays, and the newest step before the reminder.
        ("window 4000 reserve 100 | sys:100 user:900 12*(asst:270) remind:60", "fold 1..8 into 500 (4300 -> 2922)"),
        // The request far behind a run of steps and reminders, too large for an opening by its size alone.
        (
            "window 4000 reserve 100 | sys:100 asst:10 asst:10 asst:10 asst:10 user:1200 10*(asst:270 remind:30)",
            "fold 0..19 keep 4 into 500 (4340 -> 2744)",
        ),
        // Rules that came with the first message are held as the system prompt is, though they take half of the room, also
        // once the person has asked for something else.
        (
            "window 4000 reserve 100 | sys:100 rules:1900 6*(asst:270) user:30 4*(asst:270)",
            "fold 1..11 keep 7 into 475 (4730 -> 2819)",
        ),
        // Several user messages open a session: all of them stay.
        (
            "window 4000 reserve 100 | sys:100 user:500 remind:60 remind:60 14*(asst:270)",
            "fold 3..11 into 500 (4500 -> 2852)",
        ),
    ]);
}

/// A client that goes back in a history asks again what was folded since.
#[test]
fn what_is_asked_again_comes_out_of_its_fold() {
    let back =
        planned("window 4000 reserve 100 | fold:1..6=90 sys:100 user:50 asst:270 user:40 2*(call:20 result:180)");
    let (from, to, keep, _) = fold_of(&back).unwrap_or_else(|| panic!("{back:?}"));
    assert!(back.fits && (from, to, keep) == (1, 6, vec![2]), "{back:?}");
}

/// Some clients send results as user messages: their steps are as large as those of others, and are planned alike.
#[test]
fn a_step_has_its_results_whoever_sends_them() {
    let folds = |call: &str, result: &str| {
        let history = format!("{call}:60 {result}:200~clear=60 11*({call}:60 {result}:400)");
        fold_of(&planned(&format!("window 4000 reserve 100 wall keep 2 | sys:100 user:50 {history}"))).is_some()
    };
    assert!(folds("call", "result") && folds("asst", "remind"));
}

/// The plan of a picture.
fn planned(picture: &str) -> Plan {
    let case = picture::read(picture);
    plan(&case.conversation, &case.facts, &case.policy)
}

/// The fold of a plan: first message, one past the last, those that stay, and the brief's budget.
fn fold_of(plan: &Plan) -> Option<(usize, usize, Vec<usize>, u32)> {
    plan.actions.iter().find_map(|action| match action {
        Action::Fold { from, to, keep, budget, .. } => Some((*from, *to, keep.clone(), *budget)),
        _ => None,
    })
}

#[test]
fn a_tight_window_is_rewritten_deeply_and_keeps_the_newest_results() {
    // Three quarters are the client's tools: the brief is a quarter of what is left, and the next steps have room.
    let deep = planned("window 4000 reserve 100 | tools:3000 user:30 5*(call:20 result:180)");
    let (.., budget) = fold_of(&deep).unwrap_or_else(|| panic!("{deep:?}"));
    assert!(budget <= 225 && deep.after.prompt() <= 3500, "{deep:?}");
    // A usual brief would cost more than the few messages it stands for; no result is cut for it.
    let small = planned("window 4000 reserve 100 | tools:3300 user:30 2*(call:20 result:280)");
    let cut = |action: &Action| matches!(action, Action::Preview { .. } | Action::Cut { .. });
    assert!(small.fits && !small.hard && !small.actions.iter().any(cut), "{small:?}");
}

#[test]
fn a_pointer_never_means_a_result_that_the_same_plan_folds_away() {
    for steps in 4..24 {
        let picture = format!(
            "window 4000 reserve 100 | sys:100 user:50 call:20 result:600@a {steps}*(call:20 result:300) call:20 result:600@a"
        );
        let plan = planned(&picture);
        let Some((from, to, keep, _)) = fold_of(&plan) else { continue };
        let lost = |of: usize| (from..to).contains(&of) && !keep.contains(&of);
        let points = |action: &Action| matches!(action, Action::Repeat { of, .. } if lost(*of));
        assert!(!plan.actions.iter().any(points), "{picture}: {plan:?}");
    }
}

#[test]
fn files_that_a_client_sends_stay_where_steps_are_small() {
    let plan =
        planned("window 4000 reserve 100 keep 4 | sys:400 user:20 30*(user:20 asst:60) user:2100 asst:20 user:200");
    let (_, to, ..) = fold_of(&plan).unwrap_or_else(|| panic!("{plan:?}"));
    assert!(to <= 61 && plan.fits, "{plan:?}");
}
