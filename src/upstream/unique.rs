//! What a reply is known by: ids that no other has, and the time.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Unix time (seconds).
pub fn unix_seconds() -> u64 {
    crate::clock::now().as_secs()
}

/// `length` lower-case letters and digits (at most 48) that no other call of this or another process gets. Ids of
/// calls have nine: some Mistral templates refuse any other length.
pub fn unique(length: usize) -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    // RandomState is seeded by the system's randomness once a thread, and differs from call to call.
    let seed = (count, RandomState::new().hash_one(count), RandomState::new().hash_one(unix_seconds()));
    let mut hash = blake3::Hasher::new();
    for part in [seed.0, seed.1, seed.2] {
        hash.update(&part.to_le_bytes());
    }
    let mut random = [0; 48];
    hash.finalize_xof().fill(&mut random);
    random.iter().take(length).map(|byte| char::from(DIGITS[usize::from(*byte) % DIGITS.len()])).collect()
}
