//! What holds for any conversation, any window and any policy.

use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::json;
use windowsill::conversation::edit::{Edit, View};
use windowsill::conversation::managed::{Compact, Edits, Inputs, Trigger, Uses};
use windowsill::conversation::{Conversation, Message, Role, repair};
use windowsill::plan::client::over;
use windowsill::plan::fit::{Fitting, Ours, fit};
use windowsill::plan::{
    Counting, Facts, FoldAt, KeepRecent, Plan, Policy, ResultRules, Size, Strategy as Fold, TemplateFacts,
};
use windowsill::wire::openai_chat as wire;

use super::{harness, oracle};

/// One message as a client may send it, in words that shrink well.
#[derive(Debug, Clone)]
enum Say {
    System(usize),
    User(usize),
    Image(usize),
    Assistant(usize),
    /// Calls: how long the arguments are, which tool, whether they are valid JSON; then which are answered, how long.
    Step {
        calls: Vec<(usize, bool)>,
        answers: Vec<Option<usize>>,
        reuse: bool,
        late: bool,
    },
    Other(usize),
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0..200_usize, 3 => 200..1500_usize, 1 => 1500..20_000_usize]
}

fn say() -> impl Strategy<Value = Say> {
    let step = (
        prop::collection::vec((size(), prop::bool::weighted(0.9)), 1..4),
        prop::collection::vec(prop::option::weighted(0.9, size()), 4),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.1),
    );
    prop_oneof![
        1 => size().prop_map(Say::System),
        4 => size().prop_map(Say::User),
        1 => size().prop_map(Say::Image),
        4 => size().prop_map(Say::Assistant),
        8 => step.prop_map(|(calls, answers, reuse, late)| Say::Step { calls, answers, reuse, late }),
        1 => (0..400_usize).prop_map(Say::Other),
    ]
}

/// The messages as a client would send them: unanswered calls, late results, ids used again, arguments that are no JSON.
fn messages(says: &[Say]) -> Vec<serde_json::Value> {
    let mut out = Vec::new();
    let mut late = Vec::new();
    for (n, say) in says.iter().enumerate() {
        let text = |len: &usize| {
            let mut text = format!("m{n} ");
            text.extend("é lorem ipsum\n".chars().cycle().take(*len));
            if *len == 0 { String::new() } else { text }
        };
        match say {
            Say::System(len) => out.push(json!({"role": "system", "content": text(len)})),
            Say::User(len) => out.push(json!({"role": "user", "content": text(len)})),
            Say::Image(len) => out.push(json!({"role": "user", "content": [
                {"type": "text", "text": text(len)}, {"type": "image_url", "image_url": {"url": format!("i{n}")}}]})),
            Say::Assistant(len) => out.push(json!({"role": "assistant", "content": text(len)})),
            Say::Other(len) => out.push(json!({"role": "narrator", "content": text(len)})),
            Say::Step { calls, answers, reuse, late: is_late } => {
                let id = |i: usize| if *reuse { format!("r{i}") } else { format!("c{n}_{i}") };
                let call = |(i, (len, valid)): (usize, &(usize, bool))| {
                    let arguments = json!({"path": format!("f{}", len % 3), "x": "y".repeat(*len)}).to_string();
                    let arguments = if *valid { arguments } else { "{\"x\": oops".into() };
                    json!({"id": id(i), "type": "function", "function": {"name": "f", "arguments": arguments}})
                };
                let list: Vec<_> = calls.iter().enumerate().map(call).collect();
                out.push(json!({"role": "assistant", "content": null, "tool_calls": list}));
                for (i, answer) in answers.iter().enumerate().take(calls.len()) {
                    let Some(len) = answer else { continue };
                    let stub = if len % 7 == 3 { "unchanged since the last read".to_owned() } else { text(len) };
                    let result = json!({"role": "tool", "tool_call_id": id(i), "content": stub});
                    if *is_late && !*reuse { late.push(result) } else { out.push(result) }
                }
            }
        }
    }
    out.extend(late);
    out
}

fn read(messages: &[serde_json::Value], template: &TemplateFacts) -> Conversation {
    let body = json!({"messages": messages}).to_string();
    let mut conversation = wire::parse(&Bytes::from(body)).expect("a valid request").conversation;
    conversation.body = repair::repair(conversation.body, template.tool_call_id_length).expect("no orphans").body;
    conversation
}

fn policy() -> impl Strategy<Value = Policy> {
    let fold = prop_oneof![4 => Just(Fold::Summarize), 2 => Just(Fold::Truncate), 1 => Just(Fold::Off)];
    let template = prop_oneof![
        3 => Just(TemplateFacts::default()),
        1 => any::<(bool, bool, bool, bool)>().prop_map(|(strict_alternation, later_system, tool_role, ids)| {
            TemplateFacts { strict_alternation, later_system, tool_role, tool_call_id_length: ids.then_some(9) }
        }),
    ];
    let keep = prop_oneof![4 => (0..12_usize).prop_map(KeepRecent::Messages), 1 => Just(KeepRecent::ByWindow)];
    let never = prop::bool::weighted(0.2);
    let wall = any::<bool>().prop_map(|wall| if wall { FoldAt::Wall } else { FoldAt::Line });
    (fold, template, keep, 0.05..1.0_f64, (never, wall)).prop_map(|(strategy, template, keep_recent, evict, rest)| {
        Policy {
            strategy,
            fold_at: rest.1,
            template,
            keep_recent,
            results: ResultRules {
                evict_over: Size::Share(evict),
                never_clear: if rest.0 { vec!["f".into()] } else { Vec::new() },
                ..ResultRules::default()
            },
            ..Policy::default()
        }
    })
}

/// What a client asks to be done with its history.
fn edits() -> impl Strategy<Value = Edits> {
    let trigger = prop_oneof![(0..3000_u32).prop_map(Trigger::Tokens), (0..8_usize).prop_map(Trigger::Uses)];
    let inputs = prop_oneof![Just(Inputs::Stay), Just(Inputs::Go), Just(Inputs::Of(vec!["f".into()]))];
    let uses =
        (trigger, 0..4_usize, 0..400_u32, any::<bool>(), inputs).prop_map(|(trigger, keep, at_least, f, inputs)| {
            let exclude = if f { vec!["f".into()] } else { Vec::new() };
            Uses { trigger, keep, at_least, exclude, inputs }
        });
    let compact =
        (0..4000_u32, prop::bool::weighted(0.2)).prop_map(|(at, whole)| Compact { at, whole, ..Compact::default() });
    let thinking = prop::option::of(0..3_usize);
    (thinking, prop::option::of(uses), prop::option::of(compact)).prop_map(|(thinking, uses, compact)| Edits {
        thinking,
        uses,
        compact,
        stands: None,
    })
}

#[derive(Debug, Clone)]
struct Numbers {
    window: u32,
    reserved: u32,
    forwarded: f64,
    guessed: bool,
}

impl Numbers {
    fn counting(&self) -> Counting {
        Counting { guessed: self.guessed, ..Counting::default() }
    }
}

fn numbers() -> impl Strategy<Value = Numbers> {
    (256..6000_u32, 1..8_u32, 0.0..1.0_f64, any::<bool>()).prop_map(|(window, part, forwarded, guessed)| Numbers {
        window,
        reserved: window / 4 / part,
        forwarded,
        guessed,
    })
}

fn facts(conversation: &Conversation, view: &View, n: &Numbers) -> Facts {
    let forwarded = (conversation.body.len() as f64 * n.forwarded) as usize;
    Facts { forwarded, counting: n.counting(), ..harness::facts(conversation, view, n.window, n.reserved) }
}

proptest! {
    // The same cases every time; other ones with more cases and another seed.
    #![proptest_config(ProptestConfig { cases: 400, rng_seed: RngSeed::Fixed(20), failure_persistence: None, ..ProptestConfig::default() })]

    /// One request: all that [`harness::check`] asks; and no request is refused that could have been made to fit.
    #[test]
    fn any_request(says in prop::collection::vec(say(), 0..25), policy in policy(), n in numbers()) {
        let conversation = read(&messages(&says), &policy.template);
        let facts = facts(&conversation, &View::default(), &n);
        let pass = harness::check(&conversation, &facts, &policy).map_err(TestCaseError::fail)?;
        if policy.strategy != Fold::Off && !pass.plan.fits {
            let least = oracle::lower_bound(&conversation, &facts);
            prop_assert!(least > pass.plan.lines.limit, "refused at {}, though {least} fits", pass.plan.lines.limit);
        }
    }

    /// A session grows: each view remembered holds, stays small, and only grows at its end while nothing crosses a line.
    #[test]
    fn any_session(says in prop::collection::vec(say(), 1..25), policy in policy(), n in numbers()) {
        let all = messages(&says);
        let mut before: Option<(View, Vec<Bytes>, usize)> = None;
        for end in 1..=all.len() {
            if all.get(end).is_some_and(|m| m["role"] == "tool") {
                continue;
            }
            let conversation = read(&all[..end], &policy.template);
            // A result that comes late changes what was in the middle: another history, whose view is not remembered.
            let known = before.take().filter(|(_, raw, _)| starts_with(&conversation, raw));
            let (view, forwarded) = known.as_ref().map_or_else(Default::default, |(v, _, f)| (v.clone(), *f));
            let facts = Facts { forwarded, counting: n.counting(), ..harness::facts(&conversation, &view, n.window, n.reserved) };
            let pass = harness::check(&conversation, &facts, &policy)
                .map_err(|e| TestCaseError::fail(format!("with {end} messages: {e}")))?;
            if let (Some((old, _, _)), true) = (&known, pass.plan.actions.is_empty()) {
                prop_assert_eq!(&old.edits, &pass.view.edits);
            }
            let raw = conversation.body.iter().map(|m| m.bytes().clone()).collect();
            before = pass.plan.fits.then_some((pass.view, raw, conversation.body.len()));
        }
    }

    /// The same where the client asks for edits of its own: what holds of every plan holds of these, and what was done is not done
    /// again for the same history.
    #[test]
    fn any_session_whose_client_asks(says in prop::collection::vec(say(), 1..20), policy in policy(), edits in edits(), n in numbers()) {
        let policy = over(&edits, &policy);
        let all = messages(&says);
        let mut view = View::default();
        let mut raw: Vec<Bytes> = Vec::new();
        for end in 1..=all.len() {
            if all.get(end).is_some_and(|m| m["role"] == "tool") {
                continue;
            }
            let conversation = read(&all[..end], &policy.template);
            let (old, forwarded) = if starts_with(&conversation, &raw) { (view, raw.len()) } else { Default::default() };
            let facts = Facts { forwarded, counting: n.counting(), ..harness::facts(&conversation, &old, n.window, n.reserved) };
            let pass = harness::check(&conversation, &facts, &policy)
                .map_err(|e| TestCaseError::fail(format!("with {end} messages: {e}")))?;
            // What was taken out stays out: shorter still, or in a brief.
            let places = |view: &View| view.edits.iter().filter_map(text_at).collect::<Vec<usize>>();
            let (is, was) = (places(&pass.view), places(&old));
            let is_folded = |at: &usize| pass.view.edits.iter().any(|e| matches!(e, Edit::Fold { .. }) && e.touches(*at));
            prop_assert!(was.iter().all(|at| is.contains(at) || is_folded(at)), "what was cleared came back");
            (view, raw) = (View::default(), Vec::new());
            if pass.plan.fits {
                raw = conversation.body.iter().map(|m| m.bytes().clone()).collect();
                view = pass.view;
            }
        }
    }

    /// While nothing is to be done, the bytes of a view are the beginning of the bytes of the next.
    #[test]
    fn views_grow_at_the_end(says in prop::collection::vec(say(), 1..20), more in 1..60_usize, n in numbers()) {
        let whole = ResultRules { evict_over: Size::Share(1.0), ..ResultRules::default() };
        let policy = Policy { results: whole, ..Policy::default() };
        let mut all = messages(&says);
        let short = read(&all, &policy.template);
        let first = harness::pass(&short, &facts(&short, &View::default(), &n), &policy);
        prop_assume!(first.plan.fits);
        let answered = if short.body.last().is_some_and(|m| m.role == Role::User) { "assistant" } else { "user" };
        all.push(json!({"role": answered, "content": "z".repeat(more)}));
        let long = read(&all, &policy.template);
        prop_assume!(starts_with(&long, &short.body.iter().map(|m| m.bytes().clone()).collect::<Vec<_>>()));
        let facts = Facts { forwarded: short.body.len(), counting: n.counting(), ..harness::facts(&long, &first.view, n.window, n.reserved) };
        let second = harness::pass(&long, &facts, &policy);
        if second.plan.actions.is_empty() {
            let bytes = |pass: &harness::Pass| pass.out.iter().map(|m| m.bytes.clone()).collect::<Vec<_>>();
            let (a, b) = (bytes(&first), bytes(&second));
            prop_assert!(b.starts_with(&a), "{:?} is no beginning of {:?}", a, b);
        }
    }

    /// A prompt is fitted: it ends after a few plans, what is made fits what was counted or it is said what does not, each plan
    /// aims no higher than the one before while the tools of ours stay the same, and the same input gives the same views.
    #[test]
    fn any_fitting(
        says in prop::collection::vec(say(), 0..20), policy in policy(), n in numbers(), longer in 0.7..2.5_f64,
        ours in (0..200_u32, any::<bool>(), any::<bool>(), 0..80_u32),
    ) {
        let conversation = read(&messages(&says), &policy.template);
        let (recall, offered, may_come, done) = ours;
        let ours = Ours { recall, offered, may_come: may_come && !offered, at_head: done };
        let mut facts = facts(&conversation, &View::default(), &n);
        facts.tools += ours.tokens();
        let window = facts.window;
        let begun = || Fitting::new(&conversation, facts.clone(), &policy, n.reserved, ours);
        let count = |plan: &Plan| (f64::from(plan.after.prompt()) * longer) as u32;
        let (mut told, mut fitting) = (Vec::new(), begun());
        let ended = loop {
            let Some(plan) = fitting.next_plan() else { break fitting.end() };
            told.push((fitting.ours(), fitting.facts().slack));
            let (tokens, ours) = (count(&plan), fitting.ours());
            if let Some(made) = fitting.made(plan, tokens, ours) {
                break Ok(made);
            }
        };
        prop_assert!(told.len() <= 9, "{} plans were made", told.len());
        for pair in told.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            prop_assert!(pair[0].1 < pair[1].1, "{told:?}");
        }
        match &ended {
            Ok(made) => {
                prop_assert!(made.tokens + windowsill::plan::least_reserve(window) <= window, "{made:?}");
                // What is there for the first time comes with the first rewrite, and never without one.
                let came = made.what.offered && !ours.offered;
                prop_assert!(!came || !made.plan.actions.is_empty());
                prop_assert!(!(ours.may_come && !made.what.offered && made.what.may_come) || made.plan.actions.is_empty());
            }
            Err(cannot) => {
                prop_assert!(cannot.after.prompt() > cannot.limit, "{cannot:?} fits");
            }
        }
        prop_assert_eq!(fit(begun(), &mut |plan, ours| (count(plan), ours)), ended);
    }

    /// A request whose tokens were counted is planned at most three times: with less kept for the reply, and with the tool that reads
    /// back what leaves the prompt. Where a tool of ours has no room, it is planned as often again without one.
    #[test]
    fn a_counted_request_is_planned_at_most_three_times(
        says in prop::collection::vec(say(), 0..20), policy in policy(), n in numbers(),
        ours in (0..200_u32, any::<bool>(), any::<bool>(), 0..80_u32),
    ) {
        let conversation = read(&messages(&says), &policy.template);
        let (recall, offered, may_come, done) = ours;
        let ours = Ours { recall, offered, may_come: may_come && !offered, at_head: done };
        let mut facts = facts(&conversation, &View::default(), &n);
        facts.tools += ours.tokens();
        let mut fitting = Fitting::new(&conversation, facts.clone(), &policy, n.reserved, ours);
        if let Some(plan) = fitting.next_plan() {
            let tokens = plan.after.prompt();
            let was_sent = fitting.made(plan, tokens, ()).is_some();
            let dropped = ours.tokens() > 0 && fitting.ours().tokens() == 0;
            let most = if dropped { 6 } else { 3 };
            prop_assert!(fitting.plans() <= most || !was_sent, "planned {} times", fitting.plans());
        }
    }

    /// Against brute force: what is refused had to be, and what is cut off the last user message, but for the
    /// size of a brief.
    #[test]
    fn brute_force(says in prop::collection::vec(say(), 1..8), window in 128..900_u32) {
        let policy = Policy::default();
        let few = |n: usize| read(&messages(&says[..n]), &policy.template);
        let conversation = (0..=says.len()).rev().map(few).find(|c| c.body.len() <= 8).expect("none are few");
        let facts = harness::facts(&conversation, &View::default(), window, window / 8);
        let pass = harness::check(&conversation, &facts, &policy).map_err(TestCaseError::fail)?;
        let best = oracle::best(&conversation, &facts);
        let limit = pass.plan.lines.limit;
        prop_assert!(pass.plan.fits || best.with_user_cut > limit, "refused at {limit}, though {best:?}");
        let cut = pass.plan.actions.iter().any(|a| matches!(a, windowsill::plan::Action::Cut { .. }));
        prop_assert!(!cut || best.with_user_whole + oracle::LEAST_BRIEF > limit, "user message cut at {limit}, though {best:?}");
    }
}

/// The message whose text an edit replaces.
fn text_at(edit: &Edit) -> Option<usize> {
    if let Edit::Text { at, .. } = edit { Some(*at) } else { None }
}

fn starts_with(conversation: &Conversation, raw: &[Bytes]) -> bool {
    conversation.body.len() >= raw.len() && conversation.body.iter().map(Message::bytes).zip(raw).all(|(a, b)| a == b)
}
