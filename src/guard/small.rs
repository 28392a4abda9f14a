//! Models that are too small for what they are asked: below 3 billion parameters, tools are called wrongly or not at all, and a
//! long prompt is not held.

use crate::config::SizeClass;
use crate::conversation::Tokens;

/// The longest prompt that a model below 3 billion parameters is trusted to hold. Trained windows are larger; what stands in
/// their middle is lost long before.
pub const HOLDS: Tokens = 8192;

/// What is too much for a model of this size, in words; `None` where nothing is, or nobody knows the size.
pub fn too_much(size: Option<SizeClass>, tools: bool, prompt: Tokens) -> Option<String> {
    if size? != SizeClass::Small {
        return None;
    }
    match (tools, prompt > HOLDS) {
        (true, true) => Some(format!("tools to call and a prompt of {prompt} tokens (it holds {HOLDS})")),
        (true, false) => Some("tools to call".to_owned()),
        (false, true) => Some(format!("a prompt of {prompt} tokens (it holds {HOLDS})")),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_small_models_are_warned_of() {
        assert_eq!(too_much(Some(SizeClass::Small), true, 100).as_deref(), Some("tools to call"));
        assert!(too_much(Some(SizeClass::Small), false, 8_193).is_some_and(|why| why.contains("8193")));
        assert_eq!(too_much(Some(SizeClass::Small), false, 8_192), None);
        assert_eq!(too_much(Some(SizeClass::Medium), true, 90_000), None);
        assert_eq!(too_much(None, true, 90_000), None);
    }
}
