//! What an edit is worth: tokens freed against cached tokens that it makes the server evaluate again.
//!
//! With head *H*, brief *S*, recent tail *K* and trigger *T*, one cycle of folding makes *S+K* tokens be evaluated again
//! for every *T−H−S−K* new ones, so tokens evaluated over the ideal is at best 1 + (S+K)/(T−H−S−K).

use crate::conversation::Tokens;

/// Whether an edit may be made short of the wall.
pub fn worthwhile(freed: Tokens, evaluated_again: Tokens) -> bool {
    freed > 0 && freed >= evaluated_again
}

/// How much more than it costs an edit must free right at the line where it is first thought of.
const PATIENCE: f64 = 4.0;

/// How much more than it costs an edit must free at the last line: a fold, which comes next, frees three to six times as
/// much (`cargo bench --bench cache`).
const LEAST: f64 = 2.0;

/// Whether an edit is worth it already. What is waiting to be cleared grows with every step while what would be evaluated
/// again stays about the same, so an edit gets cheaper the later it is made: at the line `at` where it is first thought of
/// it must free `PATIENCE` times what it makes the server evaluate again, less and less on the way to the line `latest`,
/// and there still `LEAST` times.
pub fn worth_it_now(freed: Tokens, evaluated_again: Tokens, total: Tokens, at: Tokens, latest: Tokens) -> bool {
    let way = f64::from(latest.saturating_sub(at)).max(1.0);
    let left = f64::from(latest.saturating_sub(total)) / way;
    let factor = LEAST + (PATIENCE - LEAST) * left.clamp(0.0, 1.0);
    freed > 0 && f64::from(freed) >= f64::from(evaluated_again) * factor
}

/// Whether an edit frees about as much for each token that it makes the server evaluate again as another would;
/// `(freed, evaluated again)`. The first may be a little worse: it is the one that keeps more in view.
pub fn as_good(edit: (Tokens, Tokens), other: (Tokens, Tokens)) -> bool {
    let ((freed, again), (other_freed, other_again)) = (edit, other);
    f64::from(again) * f64::from(other_freed) <= f64::from(other_again) * f64::from(freed) * MILDER
}

/// How much worse the milder of two edits may be.
const MILDER: f64 = 2.5;

/// Tokens of the instruction that asks for a summary, about.
const INSTRUCTION: Tokens = 300;

/// Whether what is newly folded is worth asking a model about: a summary costs its instruction and its own length, and of
/// a few messages the part made without a model says enough.
pub fn worth_a_summary(fresh: Tokens, brief: Tokens) -> bool {
    fresh >= 2 * (brief + INSTRUCTION)
}

/// Whether a summary that would be more than one fold old otherwise is worth asking for: state and next steps that are that old
/// must go, so that half as much is enough.
pub fn worth_keeping_up(fresh: Tokens, brief: Tokens) -> bool {
    fresh >= brief + INSTRUCTION
}

/// Within how many steps like the last one a fold must be in sight, for its brief to be made ahead.
const STEPS_AHEAD: f64 = 4.0;

/// The least that a step is taken for then, as a share of the room up to the wall: steps differ.
const STEP: f64 = 0.04;

/// Whether a brief is to be made ahead of need: a prompt of `used` tokens is past the line `at`, and a few steps like the
/// last one, of `step` tokens, would bring it to the wall. Made earlier it would have to be extended before it is used,
/// and each time costs its instruction and its own length again.
pub fn brief_is_due(used: Tokens, step: Tokens, at: Tokens, wall: Tokens) -> bool {
    used > at && used.saturating_add(steps_ahead(step, wall)) > wall
}

/// Tokens that are looked ahead for a fold at the line `wall`, after a step of `step`.
pub fn steps_ahead(step: Tokens, wall: Tokens) -> Tokens {
    (f64::from(step).max(f64::from(wall) * STEP) * STEPS_AHEAD).ceil() as Tokens
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
        assert!(worth_it_now(40, 10, 60, 60, 80) && !worth_it_now(39, 10, 60, 60, 80));
        assert!(worth_it_now(30, 10, 70, 60, 80) && !worth_it_now(29, 10, 70, 60, 80));
        assert!(worth_it_now(20, 10, 90, 60, 80) && !worth_it_now(19, 10, 90, 60, 80));
        assert!(worth_it_now(20, 10, 60, 60, 60) && !worth_it_now(0, 0, 60, 60, 60));
        assert!(as_good((100, 250), (200, 200)) && !as_good((100, 251), (200, 200)) && as_good((100, 0), (0, 0)));
        assert!(worth_a_summary(2600, 1000) && !worth_a_summary(2599, 1000));
        assert!(worth_keeping_up(1300, 1000) && !worth_keeping_up(1299, 1000));
        assert!(brief_is_due(851, 10, 850, 1000) && !brief_is_due(850, 500, 850, 1000));
        assert!(!brief_is_due(500, 125, 350, 1000) && brief_is_due(501, 125, 350, 1000));
        assert!(worthwhile(10, 10) && !worthwhile(9, 10) && !worthwhile(0, 0));
    }
}
