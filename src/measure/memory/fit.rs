//! The largest window that fits.

use super::{Cost, Model, Refused, Settings, cost};

/// What a context may take, in bytes; headroom is already off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// On the GPU or GPUs together; 0 without one.
    pub device: u64,
    /// In RAM.
    pub host: u64,
    /// Whether both are the same memory (Apple, integrated GPUs): then only their sum counts, against `host`.
    pub unified: bool,
}

/// How many windows are tried before the search by halves.
const PARTS: u64 = 16;

/// The largest window that fits, and what it costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The window in tokens, of all sequences together, as to be asked for; 0 if not even the smallest fits.
    pub n_ctx: u64,
    /// Why it is not larger.
    pub because: String,
    /// What `n_ctx` costs; if it is 0, what the smallest window would.
    pub cost: Cost,
}

impl Budget {
    /// Whether a context fits; if not, which side is too small.
    pub fn lacks(&self, cost: &Cost) -> Option<String> {
        let over = |what: &str, needs: u64, has: u64| {
            (needs > has).then(|| format!("{what} would need {needs} bytes, {has} may be used"))
        };
        if self.unified {
            return over("memory", cost.total(), self.host);
        }
        over("the GPU", cost.device(), self.device).or_else(|| over("RAM", cost.host(), self.host))
    }
}

/// The largest window up to `upto` tokens whose cost fits the budget: a multiple of 256 a stream, never above what fits.
/// `upto` 0 stands for the trained length. `settings.n_ctx` is not looked at.
pub fn largest(model: &Model, settings: &Settings, budget: &Budget, upto: u64) -> Result<Answer, Refused> {
    let streams = if settings.cache.unified { 1 } else { settings.sequences() };
    let step = streams.saturating_mul(256);
    let wanted = if upto == 0 { model.trained } else { upto }.min(u64::from(u32::MAX));
    let at = |steps: u64| cost(model, &Settings { n_ctx: steps.saturating_mul(step), ..settings.clone() });
    let first = at(1)?;
    if let Some(lack) = budget.lacks(&first) {
        return Ok(Answer { n_ctx: 0, because: format!("not even {step} tokens fit: {lack}"), cost: first });
    }
    // Scratch buffers are laid out by best fit: now and then a larger window takes a little less of them. So before
    // halving, the range is cut where the last of some windows spread over it fits.
    let top = (wanted / step).max(1);
    let (mut low, mut high, mut best, mut lack) = (1, top, first, None);
    for part in (1..=PARTS).rev() {
        let steps = (u128::from(top) * u128::from(part) / u128::from(PARTS)) as u64;
        if steps <= 1 || steps >= high && lack.is_some() {
            continue;
        }
        let cost = at(steps)?;
        match budget.lacks(&cost) {
            None => {
                (low, best) = (steps, cost);
                break;
            }
            Some(why) => (high, lack) = (steps - 1, Some(why)),
        }
    }
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        let cost = at(middle)?;
        match budget.lacks(&cost) {
            None => (low, best) = (middle, cost),
            Some(why) => (high, lack) = (middle - 1, Some(why)),
        }
    }
    let because = match lack {
        Some(lack) => format!("{step} tokens more do not fit: {lack}"),
        None if upto == 0 => format!("the model was trained for {wanted} tokens"),
        None => format!("no more than {wanted} tokens were asked for"),
    };
    Ok(Answer { n_ctx: low.saturating_mul(step), because, cost: best })
}

/// The most steps, up to `most`, that fit, looked for near a guess: right up to where a search over all of them would end,
/// but with few trials where the guess is good. What fits must fit with fewer steps too; no step always does.
pub fn largest_near<E>(guess: u64, most: u64, mut fits: impl FnMut(u64) -> Result<bool, E>) -> Result<u64, E> {
    let guess = guess.min(most);
    let (mut low, mut high) = (0, most.saturating_add(1));
    let mut jump = 1u64;
    if guess > 0 && !fits(guess)? {
        high = guess;
        while high > 1 {
            let next = high.saturating_sub(jump);
            if next == 0 {
                break;
            }
            if fits(next)? {
                low = next;
                break;
            }
            (high, jump) = (next, jump.saturating_mul(2));
        }
    } else {
        low = guess;
        while low < most {
            let next = low.saturating_add(jump).min(most);
            if !fits(next)? {
                high = next;
                break;
            }
            (low, jump) = (next, jump.saturating_mul(2));
        }
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle)? { low = middle } else { high = middle }
    }
    Ok(low)
}
