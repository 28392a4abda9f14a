//! What a client asks for is done at its own lines, keeps what it wants kept, and is told by kind.

use super::*;
use crate::conversation::managed::Compact;
use crate::plan::{Cost, Facts, Plan, plan};
use crate::wire::openai_chat;

/// A session of so many steps: each a call of `read` (every third of `ask`) that was thought about, and its long result.
fn session(steps: usize) -> Conversation {
    let mut body = vec![r#"{"role":"user","content":"Look at them all."}"#.to_owned()];
    for n in 0..steps {
        let tool = if n % 3 == 2 { "ask" } else { "read" };
        body.push(format!(
            r#"{{"role":"assistant","content":"step {n}","reasoning_content":"I should look at {n}, {}","tool_calls":[{{"id":"c{n}","type":"function","function":{{"name":"{tool}","arguments":"{{}}"}}}}]}}"#,
            "and think about it for long. ".repeat(20)
        ));
        body.push(format!(
            r#"{{"role":"tool","tool_call_id":"c{n}","content":"{}"}}"#,
            format!("line {n}. ").repeat(200)
        ));
        if n % 4 == 3 {
            body.push(format!(r#"{{"role":"user","content":"And now {n}."}}"#));
        }
    }
    let body = body.into_iter().map(|raw| openai_chat::message(raw.into()).unwrap()).collect();
    Conversation { body, ..Conversation::default() }
}

fn facts(of: &Conversation) -> Facts {
    let cost = |m: &Message| Cost {
        text: ((m.text.len() + m.reasoning.len()) / 4) as Tokens + 4,
        calls: vec![9; m.calls.len()],
        media: 0,
    };
    let costs = of.body.iter().map(cost).collect();
    Facts { window: 32_768, output_reserved: 512, slack: 16, costs, ..Facts::default() }
}

fn planned(of: &Conversation, edits: Edits) -> Plan {
    plan(of, &facts(of), &over(&edits, &Policy::default()))
}

fn uses(trigger: Trigger) -> Uses {
    Uses { trigger, keep: 3, at_least: 0, exclude: Vec::new(), inputs: Inputs::Stay }
}

fn cleared(plan: &Plan) -> Vec<usize> {
    let mut all: Vec<usize> =
        plan.actions.iter().filter(|a| matches!(a, Action::Placeholder { .. })).map(Action::first).collect();
    all.sort_unstable();
    all
}

/// Where the results of a conversation stand.
fn results(of: &Conversation) -> Vec<usize> {
    (0..of.body.len()).filter(|at| of.body[*at].role == Role::Tool).collect()
}

#[test]
fn results_go_at_the_clients_line_and_not_before() {
    let session = session(8);
    let total: Tokens = facts(&session).costs.iter().map(Cost::total).sum();
    assert!(planned(&session, Edits::default()).actions.is_empty(), "our own lines are far");
    let all = results(&session);
    let at = |trigger| cleared(&planned(&session, Edits { uses: Some(uses(trigger)), ..Edits::default() }));
    assert_eq!(at(Trigger::Tokens(total)), [0_usize; 0]);
    assert_eq!(at(Trigger::Tokens(total - 1)), all[..5]);
    assert_eq!(at(Trigger::Uses(8)), [0_usize; 0]);
    assert_eq!(at(Trigger::Uses(7)), all[..5]);
    assert_eq!(at(Trigger::Tokens(1_000_000)), [0_usize; 0], "a line above the window is no reason to refuse anything");
}

#[test]
fn what_the_client_wants_to_keep_stays() {
    let session = session(8);
    let all = results(&session);
    let of = |uses: Uses| planned(&session, Edits { uses: Some(uses), ..Edits::default() });
    let asked = of(Uses { keep: 6, ..uses(Trigger::Uses(0)) });
    assert_eq!(cleared(&asked), all[..2]);
    let asked = of(Uses { exclude: vec!["read".into()], ..uses(Trigger::Uses(0)) });
    assert_eq!(cleared(&asked), [all[2]], "a result of `ask` alone");
    let freed: Tokens = of(uses(Trigger::Uses(0))).before.prompt() - of(uses(Trigger::Uses(0))).after.prompt();
    assert!(!of(Uses { at_least: freed, ..uses(Trigger::Uses(0)) }).actions.is_empty());
    let asked = of(Uses { at_least: freed + 1, ..uses(Trigger::Uses(0)) });
    assert!(asked.actions.is_empty() && asked.after == asked.before, "{asked:?}");
}

#[test]
fn arguments_go_with_their_results_where_that_is_asked() {
    let mut session = session(5);
    for at in [1, 3, 5] {
        session.body[at].calls[0].arguments = format!(r#"{{"text":"{}"}}"#, "word ".repeat(400));
    }
    let mut facts = facts(&session);
    [1, 3, 5].iter().for_each(|at| facts.costs[*at].calls[0] = 500);
    let elided = |inputs: Inputs| {
        let uses = Uses { keep: 1, inputs, ..uses(Trigger::Uses(0)) };
        let plan = plan(&session, &facts, &over(&Edits { uses: Some(uses), ..Edits::default() }, &Policy::default()));
        let mut all: Vec<usize> =
            plan.actions.iter().filter(|a| matches!(a, Action::Elide { .. })).map(Action::first).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(elided(Inputs::Stay), [0_usize; 0]);
    assert_eq!(elided(Inputs::Go), [1, 3, 5]);
    assert_eq!(elided(Inputs::Of(vec!["ask".into()])), [5]);
}

#[test]
fn thoughts_of_older_turns_are_left_out() {
    let session = session(10);
    let quiet = |keep| {
        let plan = planned(&session, Edits { thinking: Some(keep), ..Edits::default() });
        plan.actions.iter().filter(|a| matches!(a, Action::Quiet { .. })).count()
    };
    // Three turns: four steps, four, two.
    assert_eq!([1, 2, 3].map(quiet), [8, 4, 0]);
    let plan = planned(&session, Edits { thinking: Some(1), ..Edits::default() });
    assert!(plan.after.prompt() < plan.before.prompt());
}

#[test]
fn a_compaction_comes_at_the_clients_line_or_now() {
    let session = session(12);
    let total: Tokens = facts(&session).costs.iter().map(Cost::total).sum();
    let fold = |compact: Compact| {
        let plan = planned(&session, Edits { compact: Some(compact), ..Edits::default() });
        plan.actions.iter().find_map(|action| match action {
            Action::Fold { from, to, keep, ask_model, .. } => Some((*from, *to, keep.clone(), *ask_model)),
            _ => None,
        })
    };
    assert_eq!(fold(Compact { at: total, ..Compact::default() }), None);
    let (_, to, ..) = fold(Compact { at: total - 1, ..Compact::default() }).expect("it is due");
    assert!(to < session.body.len(), "the newest step stays");
    let (from, to, keep, asks) = fold(Compact { whole: true, ..Compact::default() }).expect("it is asked for now");
    assert_eq!((to, asks), (session.body.len(), true));
    let asked = session.body.iter().rposition(|m| m.role == Role::User).unwrap();
    assert_eq!(keep, [asked], "what a person asked last stays as it was said");
    assert!(from <= 1);
    // Who folds nothing by itself does so for a client that asks.
    let off = Policy { strategy: Strategy::Off, ..Policy::default() };
    let edits = Edits { compact: Some(Compact { whole: true, ..Compact::default() }), ..Edits::default() };
    let made = plan(&session, &facts(&session), &over(&edits, &off));
    assert!(made.actions.iter().any(|a| matches!(a, Action::Fold { ask_model: true, .. })));
    // A line that system prompt and newest step pass by themselves folds once, and not with every request.
    let low = Compact { at: 10, ..Compact::default() };
    let again = Edits { compact: Some(low), ..Edits::default() };
    let first = plan(&session, &facts(&session), &over(&again, &Policy::default()));
    let Some(Action::Fold { from, to, keep, budget, .. }) =
        first.actions.iter().find(|a| matches!(a, Action::Fold { .. })).cloned()
    else {
        panic!("{first:?}")
    };
    let folded =
        Edit::Fold { from, to, keep, brief: "the brief".into(), unread: Vec::new(), read: None, struck: Vec::new() };
    let view = View { messages: session.body.len(), edits: vec![folded], ..View::default() };
    let later = Facts { view, edit_costs: vec![budget], forwarded: session.body.len(), ..facts(&session) };
    let second = plan(&session, &later, &over(&again, &Policy::default()));
    assert!(second.actions.is_empty(), "{second:?}");
}

#[test]
fn a_brief_stands_for_the_beginning_of_a_history() {
    let session = session(6);
    let stands = |depth: usize| Stands { depth, text: "the brief".into() };
    let old = View::default();
    let view = stood(&session, &old, &stands(6)).expect("nothing tells it yet");
    let fold = |from, to, keep: &[usize], brief: &str| Edit::Fold {
        from,
        to,
        keep: keep.to_vec(),
        brief: brief.into(),
        unread: Vec::new(),
        read: Some(to),
        struck: Vec::new(),
    };
    // What a person asked last before it stays.
    assert_eq!(view.edits, [fold(0, 6, &[0], "the brief")]);
    assert_eq!(stood(&session, &view, &stands(6)), None);
    let deeper = View { edits: vec![fold(0, 8, &[], "another")], ..View::default() };
    assert_eq!(stood(&session, &deeper, &stands(6)), None, "what reaches farther tells of it");
    let shorter = View { edits: vec![fold(0, 4, &[], "older")], ..View::default() };
    assert!(stood(&session, &shorter, &stands(6)).is_some());
    assert_eq!(stood(&session, &old, &stands(99)), None);
    // It is planned on as any other fold.
    let later = Facts { view, edit_costs: vec![20], ..facts(&session) };
    let made = plan(&session, &later, &Policy::default());
    assert!(made.actions.is_empty() && made.fits, "{made:?}");
}

#[test]
fn what_was_taken_is_told_by_kind() {
    let session = session(4);
    let edit = |at: usize| Edit::Text {
        at,
        digest: session.body[at].digest,
        rule: Rule::Clear,
        text: "x".into(),
        record: "r".into(),
    };
    let view = View { messages: 9, edits: vec![edit(1), edit(2), edit(3), edit(4)], ..View::default() };
    let (uses, count) = part(&session, &view, Taken::Uses);
    assert_eq!((uses.edits.len(), count), (2, 2));
    let (thinking, turns) = part(&session, &view, Taken::Thinking);
    assert_eq!((thinking.edits.len(), turns), (2, 1), "two steps of one turn");
}
