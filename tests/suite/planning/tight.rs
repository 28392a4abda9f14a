//! Windows that system prompt and tools fill but for little: rewrites go deep and are rare, or it is said what helps.

use serde_json::json;
use windowsill::conversation::Conversation;
use windowsill::conversation::edit::View;
use windowsill::plan::{Facts, Policy, gives_way, output_reserved, plan};
use windowsill::wire::openai_chat as wire;

use super::harness;
use crate::support::{Chat, Dice, chat, prose};

/// Tokens of system prompt, tools and first request that clients bring (docs/clients.md).
const BRINGS: [(&str, u32); 12] = [
    ("codex", 9_600),
    ("opencode", 7_800),
    ("claude code", 19_200),
    ("qwen code", 19_800),
    ("pi", 1_400),
    ("continue", 1_900),
    ("cline", 3_500),
    ("vibe", 8_100),
    ("kimi code", 21_100),
    ("hermes", 13_800),
    ("openhands", 6_500),
    ("gptme", 6_400),
];

/// Steps of an agent's session.
const STEPS: usize = 40;

fn read(sent: &Chat) -> Conversation {
    wire::parse(&sent.body().into()).expect("a request").conversation
}

/// How often a session is rewritten, and whether it is said each time that this lasts for less than four steps.
fn rewrites(brings: u32, window: u32, seed: u64, bytes: (usize, usize)) -> (usize, bool) {
    let mut dice = Dice(seed);
    let mut sent =
        chat().system("You are a programmer.").user("Repair the ledger, module by module, and run its tests.");
    let (mut view, mut forwarded, mut count, mut said) = (View::default(), 0, 0, true);
    for step in 0..STEPS {
        let id = format!("c{step}");
        let path = json!({"path": format!("src/module_{}.rs", dice.below(25))});
        sent =
            sent.call(&id, "read_file", path).result(&id, &prose(dice.next() % 99_999, bytes.0 + dice.below(bytes.1)));
        let conversation = read(&sent);
        let reserved = output_reserved(window, brings, None, 1024);
        let mut facts = Facts { tools: brings, forwarded, ..harness::facts(&conversation, &view, window, reserved) };
        loop {
            let planned = plan(&conversation, &facts, &Policy::default());
            if !gives_way(&mut facts, &planned, 1024) {
                break;
            }
        }
        let pass = harness::pass(&conversation, &facts, &Policy::default());
        if !pass.plan.fits {
            // It is refused, with the counts: a step is larger than what the client leaves.
            return (count, said);
        }
        assert!(pass.tokens <= window, "{brings} in {window}, step {step}");
        let layers: Vec<&str> = pass.plan.actions.iter().map(|a| a.layer(Policy::default().strategy)).collect();
        if layers.iter().any(|layer| *layer != "evict") {
            count += 1;
            said &= pass.plan.is_soon_done_again();
        }
        (view, forwarded) = (pass.view, conversation.body.len());
    }
    (count, said)
}

#[test]
fn rewrites_go_deep_and_are_rare_where_the_head_takes_most_of_the_window() {
    let mut wrong = Vec::new();
    for (client, brings) in BRINGS {
        for (window, seed) in [(brings * 5 / 4, 3), (brings * 3 / 2, 4), (brings * 17 / 10, 5)] {
            for bytes in [(300, 600), (600, 1_800), (1_500, 3_000)] {
                let (count, said) = rewrites(brings, window, seed, bytes);
                if count * 4 > STEPS && !said {
                    wrong.push(format!("{client} in {window}, {bytes:?}: {count} of {STEPS}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
