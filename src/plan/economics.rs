//! What an edit is worth: tokens freed against cached tokens that it makes the server evaluate again.
//!
//! With head *H*, brief *S*, recent tail *K* and trigger *T*, one cycle of folding makes *S+K* tokens be evaluated again
//! for every *T−H−S−K* new ones, so tokens evaluated over the ideal is at best 1 + (S+K)/(T−H−S−K).

use crate::conversation::Tokens;

/// Whether an edit may be made short of the wall.
pub fn worthwhile(freed: Tokens, evaluated_again: Tokens) -> bool {
    freed > 0 && freed >= evaluated_again
}

/// Whether folding goes as deep as its lines promise: short of the wall anything less would be done again soon.
pub fn deep_fold(freed: Tokens, at: Tokens, to: Tokens) -> bool {
    freed > 0 && freed >= at.saturating_sub(to)
}

/// Whether clearing goes deep enough to be made at all: half of what its lines are apart, since what can be cleared may be
/// spread thin, and clearing is cheaper than folding.
pub fn deep_clear(freed: Tokens, at: Tokens, to: Tokens) -> bool {
    freed > 0 && freed >= at.saturating_sub(to) / 2
}

/// The least that tokens evaluated over the ideal can be, with these sizes; infinite when the tail leaves no room.
pub fn bound(head: Tokens, brief: Tokens, tail: Tokens, trigger: Tokens) -> f64 {
    let again = f64::from(brief) + f64::from(tail);
    let fresh = f64::from(trigger) - f64::from(head) - again;
    if fresh <= 0.0 { f64::INFINITY } else { 1.0 + again / fresh }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_is_the_formula() {
        assert_eq!(bound(1000, 500, 500, 6000), 1.25);
        assert!(bound(1000, 500, 5000, 6000).is_infinite());
        assert!(worthwhile(10, 10) && !worthwhile(9, 10) && !worthwhile(0, 0));
    }
}
