//! PURE: prompts that were evaluated and left the context, each with a copy of its state, for when a conversation goes on after
//! another had the context: evaluating takes minutes where copying takes a moment. As llama-server's prompt cache.

use super::Snapshot;

/// Fewer tokens than this are evaluated again rather than cached or taken back.
pub(super) const WORTH: usize = 64;

/// A prompt that left the context.
pub(super) struct CachedPrompt {
    /// Its tokens.
    pub(super) tokens: Vec<i32>,
    /// The whole state behind the last of them.
    pub(super) state: Vec<u8>,
    /// What cannot be cut back of it, behind some of its tokens.
    pub(super) snapshots: Vec<Snapshot>,
}

impl CachedPrompt {
    fn bytes(&self) -> u64 {
        self.state.len() as u64 + beside(&self.tokens, &self.snapshots)
    }
}

/// What a cached prompt takes beside its state (bytes).
pub(super) fn beside(tokens: &[i32], snapshots: &[Snapshot]) -> u64 {
    let snapshots = snapshots.iter().map(|snapshot| snapshot.bytes.len()).sum::<usize>();
    (snapshots + size_of_val(tokens)) as u64
}

/// Prompts that left the context, the one used longest ago first.
#[derive(Default)]
pub(super) struct PromptCache {
    prompts: Vec<CachedPrompt>,
}

/// How many tokens of `prompt` need no evaluation where these are held; the last one is evaluated in any case, for what comes
/// behind it. `rewinds`: what is held can be cut back to any token, else to where there is a snapshot.
pub(super) fn usable(tokens: &[i32], snapshots: &[Snapshot], prompt: &[i32], rewinds: bool) -> usize {
    let most = prompt.len().saturating_sub(1);
    let common = tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(most);
    if rewinds || common == tokens.len() {
        return common;
    }
    snapshots.iter().map(|snapshot| snapshot.tokens).filter(|n| *n <= common).max().unwrap_or(0)
}

impl PromptCache {
    /// What all of them take (bytes).
    pub(super) fn bytes(&self) -> u64 {
        self.prompts.iter().map(CachedPrompt::bytes).sum()
    }

    /// Takes out the one that most of `prompt` can be had from, where that is worth more than what is `held` of it.
    pub(super) fn take(&mut self, prompt: &[i32], rewinds: bool, held: usize) -> Option<CachedPrompt> {
        let of = |cached: &CachedPrompt| usable(&cached.tokens, &cached.snapshots, prompt, rewinds);
        let (at, best) = self.prompts.iter().map(of).enumerate().max_by_key(|(_, tokens)| *tokens)?;
        (best >= held + WORTH).then(|| self.prompts.remove(at))
    }

    /// Makes room for so many bytes more within `most` for all: those used longest ago go. `false`, and all stay, where that
    /// would not do.
    pub(super) fn make_room(&mut self, bytes: u64, most: u64) -> bool {
        if bytes > most {
            return false;
        }
        while !self.prompts.is_empty() && self.bytes() + bytes > most {
            self.prompts.remove(0);
        }
        true
    }

    /// Adds one. Those that it begins with have nothing that it has not.
    pub(super) fn put(&mut self, prompt: CachedPrompt) {
        self.prompts.retain(|other| !prompt.tokens.starts_with(&other.tokens));
        self.prompts.push(prompt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(tokens: &[i32], bytes: usize) -> CachedPrompt {
        CachedPrompt { tokens: tokens.to_vec(), state: vec![0; bytes], snapshots: Vec::new() }
    }

    fn run(token: i32, n: usize) -> Vec<i32> {
        vec![token; n]
    }

    #[test]
    fn the_one_that_saves_most_is_taken_where_it_is_worth_it() {
        let mut cache = PromptCache::default();
        cache.put(cached(&run(1, 100), 0));
        cache.put(cached(&run(1, 300), 0));
        cache.put(cached(&run(2, 500), 0));
        assert_eq!(cache.prompts.len(), 2, "one begins with the other");
        let prompt = run(1, 400);
        assert!(cache.take(&prompt, true, 300 - WORTH + 1).is_none());
        assert_eq!(cache.take(&prompt, true, 300 - WORTH).map(|p| p.tokens.len()), Some(300));
        assert!(cache.take(&prompt, true, 0).is_none(), "it was taken out");
        // Where nothing can be cut back, the whole of it has to be wanted.
        assert!(cache.take(&run(2, 400), false, 0).is_none());
        assert_eq!(cache.take(&run(2, 501), false, 0).map(|p| p.tokens.len()), Some(500));
    }

    #[test]
    fn what_is_usable_ends_before_the_last_token_and_at_a_snapshot() {
        let at = |tokens: usize| Snapshot { tokens, bytes: [].into() };
        let held = [1, 2, 3, 4, 5];
        assert_eq!(usable(&held, &[], &[1, 2, 9], true), 2);
        assert_eq!(usable(&held, &[], &[1, 2], true), 1);
        assert_eq!(usable(&held, &[], &[1, 2, 3, 4, 5, 6], false), 5);
        assert_eq!(usable(&held, &[at(1), at(3), at(4)], &[1, 2, 3, 9], false), 3);
        assert_eq!(usable(&held, &[at(4)], &[1, 2, 3, 9], false), 0);
        assert_eq!(usable(&held, &[], &[], true), 0);
        assert_eq!(usable(&[], &[], &[1], false), 0);
    }

    #[test]
    fn those_used_longest_ago_go_for_want_of_room() {
        let mut cache = PromptCache::default();
        (1..=3).for_each(|n| cache.put(cached(&[n], 96)));
        assert_eq!(cache.bytes(), 300);
        assert!(!cache.make_room(401, 400), "it would not fit alone");
        assert_eq!(cache.prompts.len(), 3);
        assert!(cache.make_room(200, 400));
        assert_eq!(cache.prompts.iter().map(|p| p.tokens[0]).collect::<Vec<_>>(), [2, 3]);
        assert!(cache.make_room(400, 400) && cache.prompts.is_empty());
    }
}
