//! The watchdog: what is said of a loop. How one is found is [`crate::conversation::watch`].

use crate::conversation::watch::{Kind, Loop};

/// What goes round, in a few words. A tool's name is a client's word: only what is harmless anywhere is shown.
pub fn words(seen: &Loop) -> String {
    let tool: String =
        seen.tool.chars().filter(|c| c.is_ascii_alphanumeric() || "_-.:".contains(*c)).take(64).collect();
    let Loop { times, calls, distinct, .. } = seen;
    match seen.kind {
        Kind::SameCall => format!("the same call of {tool} gave the same result {times} times"),
        Kind::Cycle => format!("the same {distinct} calls gave the same results again and again, {tool} {times} times"),
        Kind::SameError => format!("the same error came {times} times in the last {calls} calls, now from {tool}"),
    }
}

/// The line that is added to the newest result, for the model to see.
pub fn line(seen: &Loop) -> String {
    format!(
        "[windowsill: {}. Calling again will bring nothing new: try something else, or say what keeps you from going on]",
        words(seen)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tools_are_made_harmless() {
        let seen =
            Loop { kind: Kind::SameCall, times: 5, calls: 5, distinct: 1, tool: "l\u{1b}[31ms\n`ü".into(), at: 9 };
        assert_eq!(words(&seen), "the same call of l31ms gave the same result 5 times");
    }
}
