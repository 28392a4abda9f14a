//! Estimated costs that add up to the count of the whole, so that lines are compared with what the server will see.
//!
//! Pure: the planner's own sum is asked of whoever calls.

use crate::conversation::Tokens;
use crate::plan::{Facts, emergency};

/// How often costs are scaled to an exact count: each is rounded up, which adds up over a long history and would put a
/// prompt over a line that it is under.
const SCALINGS: usize = 4;

/// Makes the facts' costs add up to `exact`. `sum` tells what the planner makes of the facts.
pub fn spread(facts: &mut Facts, exact: Tokens, sum: &dyn Fn(&Facts) -> Tokens) {
    for _ in 0..SCALINGS {
        emergency::scale(facts, f64::from(exact) / f64::from(sum(facts).max(1)));
        if sum(facts) <= exact {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Cost;

    #[test]
    fn costs_add_up_to_the_count() {
        let cost = |text| Cost { text, ..Cost::default() };
        // As the planner sums up facts with one text edit, of the second message.
        let sum = |facts: &Facts| facts.head() + facts.costs[0].total() + facts.edit_costs[0] + facts.costs[2].total();
        let facts = Facts { system: 9, tools: 9, costs: vec![cost(100); 3], edit_costs: vec![40], ..Facts::default() };
        for exact in [129, 258, 300] {
            let mut facts = facts.clone();
            spread(&mut facts, exact, &sum);
            assert!(sum(&facts).abs_diff(exact) <= 4, "{exact}: {}", sum(&facts));
        }
    }
}
