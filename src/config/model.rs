//! What a model's name tells of it: its size, and the forms under which a profile may know it.
//!
//! It guesses from text alone and asks nobody.

/// How large a model is, as far as its staying power in a long conversation goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SizeClass {
    /// Below 3 billion parameters: loses the thread early.
    Small,
    /// From 3 to below 20 billion.
    Medium,
    /// 20 billion and more.
    Large,
}

impl SizeClass {
    /// All of them, in order.
    pub(crate) const ALL: [SizeClass; 3] = [SizeClass::Small, SizeClass::Medium, SizeClass::Large];

    /// The class of a parameter count. All experts of a mixture count: `30b-a3b` is large.
    pub fn of(parameters: u64) -> SizeClass {
        /// Above this, thresholds of the default suit.
        const LARGE: u64 = 20_000_000_000;
        /// `gemma3n:e2b` and `smollm2` are below, `llama3.2:3b` is not.
        const MEDIUM: u64 = 3_000_000_000;
        match parameters {
            LARGE.. => SizeClass::Large,
            MEDIUM.. => SizeClass::Medium,
            _ => SizeClass::Small,
        }
    }

    /// Its name in profiles: `small`, `medium` or `large`.
    pub fn name(self) -> &'static str {
        match self {
            SizeClass::Small => "small",
            SizeClass::Medium => "medium",
            SizeClass::Large => "large",
        }
    }
}

/// What is known of a model besides its name.
#[derive(Debug, Clone, Copy, Default)]
pub struct ModelHints<'a> {
    /// Number of parameters, as the server reports it; better than the name.
    pub parameters: Option<u64>,
    /// The chat template's text (Jinja, or Ollama's Go template).
    pub template: Option<&'a str>,
}

/// Parameters as the name states them: `0.5b`, `8B`, `135M`, `30b-a3b`, `e4b`, `8x7b`. Of several, the largest.
pub fn parameters_in_name(model: &str) -> Option<u64> {
    let lower = model.to_ascii_lowercase();
    words(&lower).filter_map(parameters_of).max()
}

/// The words of a name. A point is part of one only between digits: `1.5b` is a word, `3b.q4` are two.
fn words(name: &str) -> impl Iterator<Item = &str> {
    let bytes = name.as_bytes();
    let is_digit = move |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let joins = move |at: usize| bytes[at] == b'.' && at > 0 && is_digit(at - 1) && is_digit(at + 1);
    let mut start = 0;
    let ends = (0..=bytes.len())
        .filter(move |at| bytes.get(*at).is_none_or(|byte| !byte.is_ascii_alphanumeric() && !joins(*at)));
    ends.filter_map(move |end| name.get(std::mem::replace(&mut start, end + 1)..end))
}

/// One word such as `1.5b`, `8x7b`, `e4b` or `270m`.
fn parameters_of(word: &str) -> Option<u64> {
    /// Below this many millions it is a context length (`1M`), not a size.
    const LEAST_MILLIONS: f64 = 10.0;
    let word = word.strip_prefix('e').unwrap_or(word);
    let (number, unit) = word.split_at_checked(word.len().checked_sub(1)?)?;
    let (experts, each) = number.split_once('x').unwrap_or(("1", number));
    if !each.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let count = experts.parse::<u16>().ok().map(f64::from)? * each.parse::<f64>().ok()?;
    match unit {
        "b" if count > 0.0 && count < 100_000.0 => Some((count * 1e9).round() as u64),
        "m" if (LEAST_MILLIONS..100_000.0).contains(&count) => Some((count * 1e6).round() as u64),
        _ => None,
    }
}

/// The forms of a model's name that globs are tried on, lower case, the most telling set first.
///
/// A server names a model by an Ollama tag (`qwen3:8b`), a repository (`unsloth/Qwen3-8B-GGUF`), a file
/// (`/models/qwen3-8b-q4_k_m.gguf`), or a cache file (`unsloth_Qwen3-8B-GGUF_Qwen3-8B-Q4_K_M.gguf`). The folder of a
/// file counts only when the file's own name fits no profile.
pub(crate) fn name_forms(model: &str) -> [Vec<String>; 2] {
    let whole = model.trim().to_lowercase().replace('\\', "/");
    let mut segments = whole.rsplit('/').filter(|segment| !segment.is_empty());
    let last = segments.next().unwrap_or_default();
    let is_file = last.ends_with(".gguf");
    let mut own = vec![whole.clone()];
    own.extend(forms_of(last));
    let folder = if is_file { segments.next().map(forms_of).unwrap_or_default() } else { Vec::new() };
    [own, folder]
}

fn forms_of(segment: &str) -> Vec<String> {
    let stem = segment.strip_suffix(".gguf").unwrap_or(segment);
    let untagged = stem.split(':').next().unwrap_or(stem);
    let after_owner = stem.match_indices('_').map(|(at, _)| &stem[at + 1..]);
    [segment, stem, untagged].into_iter().chain(after_owner).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_names() {
        let cases: &[(&str, Option<u64>)] = &[
            ("qwen2.5:0.5b", Some(500_000_000)),
            ("unsloth/Qwen3-8B-GGUF", Some(8_000_000_000)),
            ("/models/qwen3-8b-q4_k_m.gguf", Some(8_000_000_000)),
            ("smollm2:135m", Some(135_000_000)),
            ("SmolLM2-1.7B-Instruct-Q8_0.gguf", Some(1_700_000_000)),
            ("qwen3:30b-a3b", Some(30_000_000_000)),
            ("gemma3n:e4b", Some(4_000_000_000)),
            ("mixtral:8x7b", Some(56_000_000_000)),
            ("Qwen2.5-7B-Instruct-1M", Some(7_000_000_000)),
            ("gemma-3-270m-it", Some(270_000_000)),
            ("llama-3.1-405b", Some(405_000_000_000)),
            ("Llama-3.2-3B.Q4_K_M.gguf", Some(3_000_000_000)),
            ("qwen2.5-1.5b.q4_0", Some(1_500_000_000)),
            ("Mixtral-8x7B.Q8_0", Some(56_000_000_000)),
            ("some.model.7b", Some(7_000_000_000)),
            ("model.4bit.gguf", None),
            ("model-4bit", None),
            ("gpt-4o", None),
            ("stub", None),
            ("qwen3", None),
            ("phi-3-mini-128k", None),
            ("b", None),
            ("", None),
            ("é", None),
            ("1M", None),
            ("0b", None),
            ("99999999999999999999999b", None),
            ("xb", None),
            ("infb", None),
            ("nanb", None),
        ];
        for (name, expected) in cases {
            assert_eq!(parameters_in_name(name), *expected, "{name}");
        }
    }

    #[test]
    fn the_folder_counts_only_for_files() {
        let [own, folder] = name_forms("/models/Qwen3-8B/model.gguf");
        assert!(own.contains(&"model".to_owned()), "{own:?}");
        assert!(folder.contains(&"qwen3-8b".to_owned()), "{folder:?}");
        let [own, folder] = name_forms("mistralai/Devstral-Small-2507");
        assert!(own.contains(&"devstral-small-2507".to_owned()), "{own:?}");
        assert!(folder.is_empty(), "{folder:?}");
    }
}
