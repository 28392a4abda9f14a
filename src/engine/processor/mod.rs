//! Whether this machine's processor has the instructions that llama.cpp was compiled to use. One that lacks some ends the
//! process over them, without a word; so every process that llama.cpp works in asks here first. Never loads or computes anything.

#[cfg(feature = "engine")]
mod native;

/// A set of instructions that not every processor has.
#[derive(Debug, Clone, Copy)]
struct Instructions {
    name: &'static str,
    /// llama.cpp was compiled to use it.
    used: bool,
    /// This processor has it.
    there: bool,
}

/// Why llama.cpp must not be called here, and what to do instead; `None` where nothing stands against it.
pub fn lack() -> Option<String> {
    #[cfg(feature = "engine")]
    return words(&native::instructions());
    #[cfg(not(feature = "engine"))]
    words(&[])
}

fn words(all: &[Instructions]) -> Option<String> {
    let lacking: Vec<&str> = all.iter().filter(|set| set.used && !set.there).map(|set| set.name).collect();
    if lacking.is_empty() {
        return None;
    }
    Some(format!(
        "the llama.cpp in this windowsill uses instructions that this machine's processor does not have ({}): take the \
         windowsill without the engine and a server of your own (--upstream URL), or build windowsill on this machine: \
         RUSTFLAGS=\"-C target-cpu=native\" cargo install --locked --path .",
        lacking.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_and_not_there_is_named_with_what_to_do() {
        let set = |name, used, there| Instructions { name, used, there };
        assert_eq!(words(&[]), None);
        assert_eq!(words(&[set("AVX", true, true), set("AVX2", false, false), set("FMA", false, true)]), None);
        let why = words(&[set("AVX", true, true), set("AVX2", true, false), set("FMA", true, false)]).unwrap();
        assert!(why.contains("does not have (AVX2, FMA)") && !why.contains("AVX,"), "{why}");
        assert!(why.contains("without the engine") && why.contains("target-cpu=native"), "{why}");
    }

    #[test]
    fn nothing_stands_against_it_where_it_was_built() {
        assert_eq!(lack(), None);
    }
}
