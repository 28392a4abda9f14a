//! The types of tensors: how many elements share a block, and how many bytes a block takes (ggml/src/ggml.c,
//! `type_traits`, and gguf-py/gguf/constants.py, `GGML_QUANT_SIZES`).

/// A ggml type that this program knows the size of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Its number in ggml's list and in files.
    pub id: u32,
    /// ggml's own name, lower case: what `--cache-type-k` takes.
    pub name: &'static str,
    /// Elements in a block.
    pub block: u64,
    /// Bytes a block takes.
    pub bytes: u64,
}

/// Every type of llama.cpp build 11434, and those that files of older builds still hold.
const KINDS: &[Kind] = &[
    kind(0, "f32", 1, 4),
    kind(1, "f16", 1, 2),
    kind(2, "q4_0", 32, 18),
    kind(3, "q4_1", 32, 20),
    kind(6, "q5_0", 32, 22),
    kind(7, "q5_1", 32, 24),
    kind(8, "q8_0", 32, 34),
    kind(9, "q8_1", 32, 36),
    kind(10, "q2_K", 256, 84),
    kind(11, "q3_K", 256, 110),
    kind(12, "q4_K", 256, 144),
    kind(13, "q5_K", 256, 176),
    kind(14, "q6_K", 256, 210),
    kind(15, "q8_K", 256, 292),
    kind(16, "iq2_xxs", 256, 66),
    kind(17, "iq2_xs", 256, 74),
    kind(18, "iq3_xxs", 256, 98),
    kind(19, "iq1_s", 256, 50),
    kind(20, "iq4_nl", 32, 18),
    kind(21, "iq3_s", 256, 110),
    kind(22, "iq2_s", 256, 82),
    kind(23, "iq4_xs", 256, 136),
    kind(24, "i8", 1, 1),
    kind(25, "i16", 1, 2),
    kind(26, "i32", 1, 4),
    kind(27, "i64", 1, 8),
    kind(28, "f64", 1, 8),
    kind(29, "iq1_m", 256, 56),
    kind(30, "bf16", 1, 2),
    kind(31, "q4_0_4_4", 32, 18),
    kind(32, "q4_0_4_8", 32, 18),
    kind(33, "q4_0_8_8", 32, 18),
    kind(34, "tq1_0", 256, 54),
    kind(35, "tq2_0", 256, 66),
    kind(36, "iq4_nl_4_4", 32, 18),
    kind(37, "iq4_nl_4_8", 32, 18),
    kind(38, "iq4_nl_8_8", 32, 18),
    kind(39, "mxfp4", 32, 17),
    kind(40, "nvfp4", 64, 36),
    kind(41, "q1_0", 128, 18),
    kind(42, "q2_0", 64, 18),
];

const fn kind(id: u32, name: &'static str, block: u64, bytes: u64) -> Kind {
    Kind { id, name, block, bytes }
}

impl Kind {
    /// The type of this number.
    pub fn of(id: u32) -> Option<Kind> {
        KINDS.iter().copied().find(|kind| kind.id == id)
    }

    /// The type of this name, in any case.
    pub fn named(name: &str) -> Option<Kind> {
        KINDS.iter().copied().find(|kind| kind.name.eq_ignore_ascii_case(name))
    }

    /// The bytes that `elements` of one row take; `None` where they do not fill whole blocks, or pass a u64.
    pub fn row(self, elements: u64) -> Option<u64> {
        if !elements.is_multiple_of(self.block) {
            return None;
        }
        (elements / self.block).checked_mul(self.bytes)
    }

    /// Whether several elements share a block: such a type compresses.
    pub fn quantized(self) -> bool {
        self.block > 1
    }
}

/// The types of keys and values in a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheTypes {
    /// Of keys.
    pub k: Kind,
    /// Of values.
    pub v: Kind,
}

impl Default for CacheTypes {
    /// llama.cpp's own: f16.
    fn default() -> CacheTypes {
        let f16 = kind(1, "f16", 1, 2);
        CacheTypes { k: f16, v: f16 }
    }
}

impl std::fmt::Display for CacheTypes {
    /// As [`CacheTypes::named`] reads it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{},{}", self.k.name, self.v.name)
    }
}

impl CacheTypes {
    /// What llama.cpp takes for its cache (common/arg.cpp, `kv_cache_types`).
    pub const KNOWN: [&str; 9] = ["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"];

    /// `q8_0`, or `q8_0,q4_0` for keys and values.
    ///
    /// # Errors
    /// What is not known.
    pub fn named(text: &str) -> Result<CacheTypes, String> {
        let one = |name: &str| {
            let name = name.trim();
            let known = Self::KNOWN.iter().any(|known| known.eq_ignore_ascii_case(name));
            let kind = known.then(|| Kind::named(name)).flatten();
            kind.ok_or_else(|| format!("`{name}` is no type of a KV cache; there are {}", Self::KNOWN.join(", ")))
        };
        let (k, v) = text.split_once(',').unwrap_or((text, text));
        Ok(CacheTypes { k: one(k)?, v: one(v)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_a_cache_are_those_of_llama_cpp() {
        let names = |text: &str| CacheTypes::named(text).map(|types| (types.k.name, types.v.name));
        assert_eq!(names("q8_0"), Ok(("q8_0", "q8_0")));
        assert_eq!(names("F16, q4_0"), Ok(("f16", "q4_0")));
        let written = CacheTypes::named("q8_0,q4_0").unwrap();
        assert_eq!(CacheTypes::named(&written.to_string()), Ok(written));
        for bad in ["q4_k", "q8", "", "f16,", "f16,q8_0,q8_0"] {
            assert!(names(bad).is_err(), "{bad}");
        }
    }
}
