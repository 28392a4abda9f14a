//! Which of several servers of one model gets a request: the one that is done with its prompt first. What a server holds of the
//! conversation needs no evaluation, what is open there comes before it, and each evaluates at its own speed.
//!
//! A prompt that is evaluated on a busy server takes the time of others there, so its evaluation counts twice where all slots are
//! taken: else conversations move for a queue that is a little shorter, and all have more to evaluate for it.

use std::collections::VecDeque;

use crate::conversation::Tokens;

/// Prompt tokens a second, where no server's speed was measured yet.
pub const USUAL_SPEED: f64 = 500.0;

/// Steps between a speed and ten times that: 15 % each.
const STEPS: f64 = 16.0;

/// The state of a server, which decides if it may get a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It may.
    Ready,
    /// It did not answer when it was last asked. It gets a request only where no other one is left.
    Down,
    /// A person wants it to get no more.
    Draining,
}

/// One server, as far as it matters for a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Server {
    /// Whether it may get a request.
    pub standing: Standing,
    /// Its window, where it is known.
    pub window: Option<Tokens>,
    /// Tokens of the prompt that its cache is known to hold.
    pub held: Tokens,
    /// Milliseconds until it begins with a request that comes now.
    pub waiting: f64,
    /// Share of what it works on at once that is taken, from 0 to 1.
    pub busy: f64,
    /// Prompt tokens that it evaluates in a second; `None` where that was not measured yet.
    pub speed: Option<f64>,
    /// Requests that it had so far.
    pub had: u64,
}

/// Why a server was chosen, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// There is no other one.
    Only,
    /// The window of the others is too small for the whole prompt.
    Window,
    /// It holds the most of the conversation, and that is worth its wait.
    Warm,
    /// It is done with the prompt first, though another one holds more of the conversation.
    Sooner,
    /// Nobody holds anything: it is done first.
    First,
    /// None is ready: this one may be back.
    LastResort,
}

impl Because {
    /// As it is told.
    pub fn as_str(self) -> &'static str {
        match self {
            Because::Only => "only",
            Because::Window => "window",
            Because::Warm => "warm",
            Because::Sooner => "sooner",
            Because::First => "first",
            Because::LastResort => "last-resort",
        }
    }
}

/// A server that was chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Its index.
    pub at: usize,
    /// Why.
    pub because: Because,
    /// Prompt tokens that it holds.
    pub held: Tokens,
    /// Prompt tokens that it has to evaluate.
    pub new: Tokens,
    /// Milliseconds until it has, with what comes before.
    pub milliseconds: f64,
    /// The same, with the time that others there lose by it: what was compared.
    pub price: f64,
}

/// Chooses a server for a prompt of so many tokens, whose reply may take `reply` more. Those in `tried` are out of the question.
/// `None` where no server is left. Of servers that are as good, the one that holds most is taken, then the one that had the fewest
/// requests, so that conversations which are new everywhere spread over them.
pub fn choose(prompt: Tokens, reply: Tokens, servers: &[Server], tried: &[usize]) -> Option<Choice> {
    let left =
        || servers.iter().enumerate().filter(|(at, one)| !tried.contains(at) && one.standing != Standing::Draining);
    let ready: Vec<usize> = left().filter(|(_, one)| one.standing == Standing::Ready).map(|(at, _)| at).collect();
    let last_resort = ready.is_empty();
    let able: Vec<usize> = if last_resort { left().map(|(at, _)| at).collect() } else { ready };
    let speed = usual_speed(servers);
    let whole = |at: &usize| servers[*at].window.is_none_or(|window| window >= prompt.saturating_add(reply));
    let (fit, unfit): (Vec<usize>, Vec<usize>) = able.iter().copied().partition(whole);
    // Where none has room for all of it, it is rewritten least for the largest window.
    let largest = unfit.iter().filter_map(|at| servers[*at].window).max();
    let among = match fit.is_empty() {
        true => unfit.iter().copied().filter(|at| servers[*at].window == largest).collect(),
        false => fit,
    };
    let judged = among.iter().map(|at| judged(*at, prompt, &servers[*at], speed));
    let best = judged.min_by(|a, b| {
        let held = |one: &Choice| std::cmp::Reverse(servers[one.at].held);
        let had = |one: &Choice| servers[one.at].had;
        let as_good = held(a).cmp(&held(b)).then(had(a).cmp(&had(b))).then(a.at.cmp(&b.at));
        a.price.total_cmp(&b.price).then(as_good)
    })?;
    let most = among.iter().map(|at| servers[*at].held).max().unwrap_or(0);
    let because = match () {
        () if last_resort => Because::LastResort,
        () if able.len() == 1 => Because::Only,
        () if among.len() < able.len() && among.len() == 1 => Because::Window,
        () if most == 0 => Because::First,
        () if servers[best.at].held == most => Because::Warm,
        () => Because::Sooner,
    };
    Some(Choice { because, ..best })
}

fn judged(at: usize, prompt: Tokens, server: &Server, usual: f64) -> Choice {
    let new = prompt.saturating_sub(server.held);
    let speed = about(server.speed.filter(|speed| speed.is_finite() && *speed > 0.0).unwrap_or(usual));
    let waiting = if server.waiting.is_finite() { server.waiting.max(0.0) } else { 0.0 };
    let busy = if server.busy.is_finite() { server.busy.clamp(0.0, 1.0) } else { 0.0 };
    let evaluating = f64::from(new) / speed * 1000.0;
    let milliseconds = waiting + evaluating;
    let price = milliseconds + evaluating * busy;
    Choice { at, because: Because::First, held: prompt.min(server.held), new, milliseconds, price }
}

/// A measured speed, as exact as it is: no server is the better one for a few tokens a second.
fn about(speed: f64) -> f64 {
    10f64.powf((speed.log10() * STEPS).round() / STEPS)
}

/// The speed of a server that was not measured yet: that of the others, in the mean.
fn usual_speed(servers: &[Server]) -> f64 {
    let known: Vec<f64> =
        servers.iter().filter_map(|one| one.speed).filter(|speed| speed.is_finite() && *speed > 0.0).collect();
    if known.is_empty() { USUAL_SPEED } else { known.iter().sum::<f64>() / known.len() as f64 }
}

/// Entries of a [`Cache`] that are remembered.
const ENTRIES: usize = 1024;

/// What the cache of one server holds, as far as its replies tell. A cache keeps what was used last and lets go what was not, so how
/// many tokens were used since says whether a prompt is still there; how many it keeps is learned from what replies say of that. `K`
/// names a prompt.
#[derive(Debug, Clone)]
pub struct Cache<K> {
    /// What it was left with, the one used last first.
    entries: VecDeque<Entry<K>>,
    /// Tokens that may be used after a prompt until it is gone; `None` where none was seen to go.
    keeps: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Entry<K> {
    name: K,
    prompt: Tokens,
    left: Tokens,
    /// Tokens that it takes of the cache: none where a longer prompt goes on from it.
    weight: Tokens,
}

/// What a cache was left with of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left<K> {
    /// The name of what it was left with.
    pub name: K,
    /// Tokens of it: the prompt and the reply.
    pub tokens: Tokens,
    /// Whether that is still there, by what was used since.
    pub is_there: bool,
}

impl<K> Default for Cache<K> {
    fn default() -> Cache<K> {
        Cache { entries: VecDeque::new(), keeps: None }
    }
}

impl<K: Copy + PartialEq> Cache<K> {
    /// The most that it was left with of a prompt. `depth`: how much of the prompt has this name, if any of it has.
    pub fn find(&self, depth: impl Fn(&K) -> Option<usize>) -> Option<Left<K>> {
        let (mut best, mut since) = (None, 0u64);
        for one in &self.entries {
            let deeper = depth(&one.name).filter(|depth| best.is_none_or(|(deepest, _)| *depth > deepest));
            if let Some(depth) = deeper {
                let is_there = self.keeps.is_none_or(|keeps| since <= keeps);
                best = Some((depth, Left { name: one.name, tokens: one.left, is_there }));
            }
            since += u64::from(one.weight);
        }
        best.map(|(_, left)| left)
    }

    /// Takes in a reply to a prompt of so many tokens, which left so many behind. `before`: what the prompt went on from, and how many of
    /// its tokens the server says that it still had; `None` where it did not say, or where that tells nothing.
    pub fn takes(&mut self, name: K, (prompt, left): (Tokens, Tokens), before: Option<(K, Option<Tokens>)>) {
        let known =
            before.and_then(|(name, cached)| Some((self.entries.iter().position(|one| one.name == name)?, cached)));
        if let Some((at, cached)) = known {
            let since: u64 = self.entries.iter().take(at).map(|one| u64::from(one.weight)).sum();
            // A reply leaves more than the next prompt repeats: a model's reasoning is not sent back.
            let kept = cached.map(|cached| u64::from(cached) * 2 >= u64::from(self.entries[at].prompt));
            match (kept, self.keeps) {
                (Some(true), Some(keeps)) => self.keeps = Some(keeps.max(since)),
                (Some(false), keeps) => {
                    self.keeps = Some(keeps.map_or(since, |keeps| keeps.min(since)));
                    // What was used before that went before it.
                    self.entries.truncate(at);
                }
                _ => {}
            }
            if let Some(before) = self.entries.remove(at) {
                self.entries.push_front(Entry { weight: 0, ..before });
            }
        }
        self.entries.retain(|one| one.name != name);
        self.entries.push_front(Entry { name, prompt, left, weight: left });
        self.entries.truncate(ENTRIES);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const READY: Server = Server {
        standing: Standing::Ready,
        window: None,
        held: 0,
        waiting: 0.0,
        busy: 0.0,
        speed: Some(1000.0),
        had: 0,
    };

    fn chosen(prompt: Tokens, servers: &[Server]) -> (usize, Because) {
        let choice = choose(prompt, 0, servers, &[]).unwrap();
        (choice.at, choice.because)
    }

    #[test]
    fn a_conversation_stays_while_what_is_held_is_worth_the_wait() {
        let warm = |waiting| [READY, Server { held: 9_000, waiting, ..READY }];
        assert_eq!(chosen(10_000, &warm(0.0)), (1, Because::Warm));
        assert_eq!(chosen(10_000, &warm(8_900.0)), (1, Because::Warm));
        assert_eq!(chosen(10_000, &warm(9_100.0)), (0, Because::Sooner));
        let slow = Server { speed: Some(50.0), held: 9_000, ..READY };
        assert_eq!(chosen(10_000, &[READY, slow]), (0, Because::Sooner), "1,000 tokens take it 20 seconds");
        assert_eq!(chosen(10_000, &[READY, READY]), (0, Because::First));
    }

    #[test]
    fn what_others_there_lose_counts_as_much_as_the_own_wait() {
        let busy = |waiting, busy| [READY, Server { held: 9_000, waiting, busy, ..READY }];
        // 1,000 tokens there, which others wait for, too, or 10,000 where nobody is.
        assert_eq!(chosen(10_000, &busy(7_900.0, 1.0)), (1, Because::Warm));
        assert_eq!(chosen(10_000, &busy(8_100.0, 1.0)), (0, Because::Sooner));
        // Where all are as busy, a conversation stays for longer.
        let both = |waiting| [Server { busy: 1.0, ..READY }, busy(waiting, 1.0)[1]];
        assert_eq!(chosen(10_000, &both(17_900.0)), (1, Because::Warm));
        let choice = choose(10_000, 0, &both(17_900.0), &[]).unwrap();
        assert!((choice.milliseconds - 18_900.0).abs() < 1e-6, "what is told is the own time: {choice:?}");
    }

    fn held(cache: &Cache<u32>, name: u32) -> Option<bool> {
        cache.find(|one| (*one == name).then_some(1)).map(|left| left.is_there)
    }

    #[test]
    fn a_cache_keeps_what_was_used_last() {
        let mut cache = Cache::default();
        (1..=5).for_each(|name| cache.takes(name, (900, 1_000), None));
        assert_eq!((held(&cache, 1), held(&cache, 9)), (Some(true), None), "nothing was seen to go");
        // The second one is gone, behind three others; what was used before it is, too.
        cache.takes(12, (1_900, 2_000), Some((2, Some(10))));
        let there = |cache: &Cache<u32>, names: &[u32]| names.iter().map(|name| held(cache, *name)).collect::<Vec<_>>();
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(there(&cache, &[1, 2, 3, 4, 5, 12]), [None, None, no, yes, yes, yes]);
        // One is there, behind as many: it keeps more than that was.
        cache.takes(13, (1_900, 2_000), Some((3, Some(950))));
        assert_eq!(there(&cache, &[3, 4, 5, 12, 13]), [yes, no, yes, yes, yes]);
        // What goes on from another takes its place, and a server that says nothing teaches nothing.
        let mut cache = Cache::default();
        cache.takes(1, (900, 1_000), None);
        (2..200).for_each(|name| cache.takes(name, (900, 1_000), Some((name - 1, None))));
        cache.takes(500, (50, 60), None);
        cache.takes(501, (50, 60), Some((500, Some(0))));
        assert_eq!(held(&cache, 199), None, "used before what is gone");
        let deepest = |cache: &Cache<u32>| cache.find(|one| usize::try_from(*one).ok()).unwrap();
        assert_eq!(deepest(&cache), Left { name: 501, tokens: 60, is_there: true });
    }

    #[test]
    fn what_is_new_everywhere_spreads_over_servers_that_are_as_good() {
        let had = |had, speed| Server { had, speed: Some(speed), ..READY };
        assert_eq!(chosen(10_000, &[had(9, 1003.0), had(8, 998.0), had(8, 1001.0)]), (1, Because::First));
        assert_eq!(chosen(10_000, &[had(9, 2000.0), had(0, 1000.0)]), (0, Because::First), "twice as fast");
        let busy = Server { waiting: 1.0, ..had(0, 1000.0) };
        assert_eq!(chosen(10_000, &[busy, had(9, 1000.0)]), (1, Because::First), "the one with less to do");
    }

    #[test]
    fn standing_comes_before_speed_and_a_whole_prompt_before_both() {
        let (down, draining) =
            (Server { standing: Standing::Down, ..READY }, Server { standing: Standing::Draining, ..READY });
        let busy = Server { waiting: 60_000.0, ..READY };
        assert_eq!(chosen(100, &[down, busy]), (1, Because::Only));
        assert_eq!(chosen(100, &[draining, down]), (1, Because::LastResort));
        assert_eq!(choose(100, 0, &[draining], &[]), None);
        assert_eq!(choose(100, 0, &[READY, READY], &[0, 1]), None);
        let small = Server { window: Some(4_096), held: 4_000, ..READY };
        let large = Server { window: Some(32_768), ..busy };
        assert_eq!(chosen(4_000, &[small, large]), (0, Because::Warm));
        assert_eq!(chosen(5_000, &[small, large]), (1, Because::Window));
        assert_eq!(chosen(50_000, &[small, large]), (1, Because::Window), "the most of it stays there");
    }

    fn server() -> impl Strategy<Value = Server> {
        let standing = prop_oneof![
            4 => Just(Standing::Ready),
            1 => Just(Standing::Down),
            1 => Just(Standing::Draining)
        ];
        let window = proptest::option::of(1_000u32..200_000);
        let speed = proptest::option::of(prop_oneof![9 => 1.0f64..20_000.0, 1 => Just(f64::NAN)]);
        let waiting = (0.0f64..120_000.0, 0.0f64..1.5);
        (standing, window, 0u32..150_000, waiting, speed, 0u64..9).prop_map(
            |(standing, window, held, (waiting, busy), speed, had)| Server {
                standing,
                window,
                held,
                waiting,
                busy,
                speed,
                had,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_chosen_may_be_and_nothing_is_better(
            prompt in 0u32..200_000,
            reply in 0u32..20_000,
            servers in proptest::collection::vec(server(), 0..9),
            tried in proptest::collection::vec(0usize..9, 0..4),
        ) {
            let left: Vec<usize> = (0..servers.len())
                .filter(|at| !tried.contains(at) && servers[*at].standing != Standing::Draining)
                .collect();
            let Some(choice) = choose(prompt, reply, &servers, &tried) else {
                prop_assert!(left.is_empty());
                return Ok(());
            };
            prop_assert!(left.contains(&choice.at));
            let is_ready = |at: usize| servers[at].standing == Standing::Ready;
            prop_assert!(is_ready(choice.at) || !left.iter().any(|at| is_ready(*at)));
            let room = |at: usize| servers[at].window.map_or(u64::MAX, u64::from);
            let whole = |at: usize| room(at) >= u64::from(prompt) + u64::from(reply);
            let speed = usual_speed(&servers);
            for at in left.into_iter().filter(|at| is_ready(*at) == is_ready(choice.at)) {
                if whole(at) {
                    prop_assert!(whole(choice.at));
                }
                if whole(at) == whole(choice.at) && (whole(at) || room(at) == room(choice.at)) {
                    prop_assert!(choice.price <= judged(at, prompt, &servers[at], speed).price);
                }
            }
        }

        #[test]
        fn more_that_is_held_never_moves_a_conversation_away_and_a_longer_queue_never_draws_one(
            prompt in 1u32..100_000,
            servers in proptest::collection::vec(server(), 1..6),
            more in 0u32..100_000,
        ) {
            let Some(choice) = choose(prompt, 0, &servers, &[]) else { return Ok(()) };
            let mut warmer = servers.clone();
            warmer[choice.at].held = warmer[choice.at].held.saturating_add(more);
            prop_assert_eq!(choose(prompt, 0, &warmer, &[]).unwrap().at, choice.at);
            for at in (0..servers.len()).filter(|at| *at != choice.at) {
                let mut busier = servers.clone();
                busier[at].waiting += f64::from(more);
                prop_assert_eq!(choose(prompt, 0, &busier, &[]).unwrap().at, choice.at);
            }
        }
    }
}
