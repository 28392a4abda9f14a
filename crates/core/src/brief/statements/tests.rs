//! Which statements hold, and which take the place of others: pairs that people wrote, and what nothing may merge.

use super::*;

#[test]
fn what_holds_is_told_from_what_happens() {
    for (text, holds_on) in [
        ("Never touch vendor/legacy.", true),
        ("RELEASE NOTE: we ship on 2027-03-01.", true),
        ("Our staging host is st-4.example.com.", true),
        ("I prefer short answers.", true),
        ("Only Ana Ruiz may merge to main.", true),
        ("The next step is the audit log.", true),
        ("请记住：端口是 8080。", true),
        ("Die Tests müssen vor jedem Commit laufen.", true),
        ("La contraseña nunca debe salir en los logs.", true),
        ("Run the tests again.", false),
        ("Which port is 8080 for?", false),
        ("The deploy finished and all is well.", false),
        ("go on", false),
    ] {
        assert_eq!(holds(text), holds_on, "{text}");
    }
}

#[test]
fn a_newer_value_takes_the_place_of_the_older_one() {
    for (older, newer) in [
        ("Our production bucket is eu-frost-1.", "Correction: the bucket is eu-frost-7 since yesterday."),
        ("The metrics sidecar listens on 9187.", "The metrics sidecar listens on 9190."),
        ("The next step is the audit log.", "The next step is the rollback plan."),
        ("No deploy without Ana Ruiz approving it first.", "No deploy without Jo Lindt approving it first."),
        ("Please answer in Formal style.", "Please answer in Casual style."),
        (
            "RULE: Budget cap is $493 total. Never exceed it without approval.",
            "RULE: Total spending is capped at $791; to exceed it needs approval.",
        ),
        ("FACT: the release manager is Ana Ruiz.", "FACT: release manager this time: Jo Lindt."),
        ("预发布端口是 8080。", "预发布端口是 9090。"),
        ("FACT: On-call this week belongs to Ana Ruiz.", "FACT: On-call this week belongs to Jo Lindt."),
        ("Die Kasse gehört jetzt Ana Ruiz.", "Die Kasse gehört jetzt Jo Lindt."),
        ("RULE: Send the weekly report on Tuesday.", "RULE: Weekly report day for this user: Friday."),
        ("Bitte immer auf Zweig feature/a1 arbeiten.", "Bitte jetzt auf Zweig feature/b2 arbeiten."),
        ("Bitte immer auf Zweig feature/a1 arbeiten.", "Ab jetzt immer auf Zweig feature/b2 arbeiten."),
    ] {
        assert!(Stated::of(newer).replaces(&Stated::of(older)), "{newer} / {older}");
    }
}

/// `(language, whether the newer one takes the older one's place, older, newer)`: every second pair was not looked at while
/// the rule was written.
fn pairs() -> Vec<(&'static str, bool, &'static str, &'static str)> {
    let row = |line: &'static str| {
        let mut cells = line.split('\t');
        let mut next = || cells.next().unwrap();
        (next(), next() == "replaced", next(), next())
    };
    include_str!("pairs.tsv").lines().map(row).collect()
}

#[test]
fn a_statement_is_called_replaced_only_where_it_is() {
    for half in 0..2 {
        let (mut right, mut wrong, mut missed) = (0, 0, 0);
        for (at, (language, replaced, older, newer)) in pairs().into_iter().enumerate().filter(|(i, _)| i % 2 == half) {
            let (all_old, all_new) = (stated(older), stated(newer));
            let called = all_new.iter().any(|new| all_old.iter().any(|old| new.replaces(old)));
            match (called, replaced) {
                (true, true) => right += 1,
                (true, false) => wrong += 1,
                (false, true) => missed += 1,
                (false, false) => {}
            }
            if half == 0 && called != replaced {
                println!("{at} {language} called {called}: {older} / {newer}");
            }
        }
        println!("half {half}: {right} right, {wrong} wrong, {missed} missed");
        assert!(wrong * 19 <= right, "half {half}: {right} right, {wrong} wrong");
        assert!(missed * 2 <= right, "half {half}: {right} right, {missed} missed");
    }
}

#[test]
fn what_is_about_different_things_is_never_merged() {
    for (older, newer) in [
        ("The staging database port is 5432.", "The staging web port is 8080."),
        ("The key for door 31 is K147.", "The key for door 42 is K554."),
        ("No sesame at the counter.", "No peanuts at the counter."),
        ("Never touch vendor/a.", "Never touch lib/b."),
        ("The production database runs in region eu-1.", "Region for the production cache: us-2."),
        ("Ana Ruiz approves deploys.", "Jo Lindt approves budgets."),
        ("Always use React for pages.", "Always use Postgres for rows."),
        ("No deploy of Atlas without tests.", "No deploy of Borealis without tests."),
        ("RULE: tests run before each commit.", "GOAL: release 2.4 in May."),
        ("The API token is in vault/a.", "The API token is in vault/a."),
    ] {
        assert!(!Stated::of(newer).replaces(&Stated::of(older)), "{newer} / {older}");
    }
}
