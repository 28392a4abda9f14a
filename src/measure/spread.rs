//! Counted costs in the place of estimated ones: of every message of the view that is forwarded as the client sent it. What
//! an edit put there keeps its estimate, scaled so that all adds up to the count of the whole.
//!
//! Pure: the planner's own sum is asked of whoever calls.

use super::count::Counted;
use crate::conversation::Tokens;
use crate::plan::{Facts, emergency};

/// How often costs are scaled to an exact count: each is rounded up, which adds up over a long history and would put a
/// prompt over a line that it is under.
const SCALINGS: usize = 4;

/// Takes the facts' costs from what was counted of a view, and makes them add up to `exact`. `places` tells of each counted
/// message after the leading system messages which of the body it is, if it is one unchanged; `sum` what the planner makes
/// of the facts.
pub fn spread(
    facts: &mut Facts,
    counted: Option<&Counted>,
    places: &[Option<usize>],
    exact: Tokens,
    sum: &dyn Fn(&Facts) -> Tokens,
) {
    let mut known = vec![false; facts.costs.len()];
    let mut sure: Tokens = 0;
    if let Some(counted) = counted {
        (facts.system, facts.tools) = (counted.system, counted.tools);
        sure = counted.system.saturating_add(counted.tools);
        // A server that renders in a way of its own: the head as it is, the rest follows its count.
        if counted.total() == exact {
            for (cost, at) in counted.costs.iter().zip(places) {
                let Some((at, own)) = at.and_then(|at| Some((at, facts.costs.get_mut(at)?))) else { continue };
                own.clone_from(cost);
                known[at] = true;
                sure = sure.saturating_add(cost.total());
            }
        }
    }
    let (head, costs, counting) = ((facts.system, facts.tools), facts.costs.clone(), facts.counting);
    for _ in 0..SCALINGS {
        let ours = sum(facts).saturating_sub(sure);
        if counted.is_some() && ours == exact.saturating_sub(sure) {
            break;
        }
        emergency::scale(facts, f64::from(exact.saturating_sub(sure)) / f64::from(ours.max(1)));
        if counted.is_some() {
            (facts.system, facts.tools) = head;
        }
        let kept = facts.costs.iter_mut().zip(&costs).zip(&known).filter(|(_, known)| **known);
        kept.for_each(|((cost, counted), _)| cost.clone_from(counted));
        if sum(facts) <= exact {
            break;
        }
    }
    // Whether texts are counted like that, the next count of the whole tells.
    facts.counting = counting;
    // What rounding up still adds is taken off the largest that was not counted: a prompt that fits to the token fits.
    let over = sum(facts).saturating_sub(exact);
    let estimated = facts.costs.iter_mut().zip(&known).filter(|(_, known)| !**known).map(|(cost, _)| &mut cost.text);
    let largest = if facts.edit_costs.is_empty() { estimated.max() } else { facts.edit_costs.iter_mut().max() };
    if let Some(largest) = largest {
        *largest = largest.saturating_sub(over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Cost;

    fn cost(text: Tokens) -> Cost {
        Cost { text, ..Cost::default() }
    }

    /// As the planner sums up facts with one text edit, of the second message.
    fn sum(facts: &Facts) -> Tokens {
        let edited = facts.edit_costs.first().copied();
        let costs = facts.costs.iter().enumerate();
        facts.head() + costs.map(|(i, c)| edited.filter(|_| i == 1).unwrap_or(c.total())).sum::<Tokens>()
    }

    #[test]
    fn what_is_unchanged_costs_what_was_counted_and_the_rest_adds_up() {
        let mut facts = Facts { system: 9, tools: 9, costs: vec![cost(100); 3], ..Facts::default() };
        let counted = Counted { system: 5, tools: 7, costs: vec![cost(80), cost(20), cost(130)] };
        let mut plain = facts.clone();
        spread(&mut plain, Some(&counted), &[Some(0), Some(1), Some(2)], 242, &sum);
        assert_eq!((plain.head(), &plain.costs), (12, &counted.costs));

        facts.edit_costs = vec![40];
        let mut edited = facts.clone();
        spread(&mut edited, Some(&counted), &[Some(0), None, Some(2)], 242, &sum);
        assert_eq!((edited.costs[0].text, edited.costs[2].text, edited.edit_costs[0]), (80, 130, 20));
        assert_eq!(sum(&edited), 242);

        // The server's own rendering is longer: the head stays.
        let mut foreign = facts.clone();
        spread(&mut foreign, Some(&counted), &[Some(0), None, Some(2)], 300, &sum);
        assert_eq!(foreign.head(), 12);
        assert_eq!(sum(&foreign), 300);

        spread(&mut facts, None, &[], 129, &sum);
        assert_eq!(sum(&facts), 129);
    }

    #[test]
    fn what_scaling_rounds_up_again_does_not_stay() {
        let mut facts = Facts { costs: vec![cost(10); 30], ..Facts::default() };
        spread(&mut facts, None, &[], 299, &sum);
        assert_eq!(sum(&facts), 299);
        facts.edit_costs = vec![20];
        spread(&mut facts, None, &[], 305, &sum);
        assert_eq!(sum(&facts), 305);
    }
}
