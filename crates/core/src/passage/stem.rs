//! The stem of an English word, by M. F. Porter's algorithm ("An algorithm for suffix stripping", Program 14(3), 1980; the
//! departures of its author's own program are included: <https://tartarus.org/martin/PorterStemmer/>).
//!
//! Only words of plain lower-case letters have one: everything else stays as it is.

/// Endings of step 2, what takes their place, by the letter before the last as the author's program has them.
const STEP_2: [(&str, &str); 21] = [
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("logi", "log"),
];

const STEP_3: [(&str, &str); 7] =
    [("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", "")];

/// Endings of step 4. A longer one comes before one that it ends with.
const STEP_4: [&str; 19] = [
    "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ion", "ism", "ate", "iti", "ous", "ive", "ize",
    "al", "er", "ic", "ou",
];

/// Turns a word into its stem.
pub(super) fn stem(word: &mut String) {
    if word.len() < 3 || !word.bytes().all(|b| b.is_ascii_lowercase()) {
        return;
    }
    step_1(word);
    replace(word, &STEP_2);
    replace(word, &STEP_3);
    step_4(word);
    step_5(word);
}

/// Whether the letter at a place is a consonant.
fn consonant(word: &[u8], at: usize) -> bool {
    match word[at] {
        b'a' | b'e' | b'i' | b'o' | b'u' => false,
        b'y' => at == 0 || !consonant(word, at - 1),
        _ => true,
    }
}

/// How many times a vowel is followed by a consonant: the `m` of the paper.
fn measure(stem: &[u8]) -> usize {
    let kinds = (0..stem.len()).map(|at| consonant(stem, at));
    let (mut count, mut before) = (0, true);
    for consonant in kinds {
        count += usize::from(consonant && !before);
        before = consonant;
    }
    count
}

fn has_vowel(stem: &[u8]) -> bool {
    (0..stem.len()).any(|at| !consonant(stem, at))
}

fn doubled(word: &[u8]) -> bool {
    let n = word.len();
    n >= 2 && word[n - 1] == word[n - 2] && consonant(word, n - 1)
}

/// Whether it ends consonant, vowel, consonant, the last of them neither w, x nor y.
fn short_end(word: &[u8]) -> bool {
    let n = word.len();
    n >= 3
        && consonant(word, n - 3)
        && !consonant(word, n - 2)
        && consonant(word, n - 1)
        && !matches!(word[n - 1], b'w' | b'x' | b'y')
}

/// Plurals, and the endings -ed and -ing.
fn step_1(word: &mut String) {
    if word.ends_with("sses") || word.ends_with("ies") {
        word.truncate(word.len() - 2);
    } else if word.ends_with('s') && !word.ends_with("ss") {
        word.pop();
    }
    if word.ends_with("eed") {
        if measure(&word.as_bytes()[..word.len() - 3]) > 0 {
            word.pop();
        }
    } else if let Some(bare) = ["ed", "ing"].iter().find_map(|end| word.strip_suffix(end))
        && has_vowel(bare.as_bytes())
    {
        word.truncate(bare.len());
        if ["at", "bl", "iz"].iter().any(|end| word.ends_with(end)) {
            word.push('e');
        } else if doubled(word.as_bytes()) {
            if !word.ends_with(['l', 's', 'z']) {
                word.pop();
            }
        } else if measure(word.as_bytes()) == 1 && short_end(word.as_bytes()) {
            word.push('e');
        }
    }
    if word.ends_with('y') && has_vowel(&word.as_bytes()[..word.len() - 1]) {
        word.pop();
        word.push('i');
    }
}

/// Puts what belongs there in the place of the first ending that a word has, where enough stands before it.
fn replace(word: &mut String, endings: &[(&str, &str)]) {
    let Some((bare, instead)) =
        endings.iter().find_map(|(end, instead)| Some((word.strip_suffix(end)?.len(), *instead)))
    else {
        return;
    };
    if measure(&word.as_bytes()[..bare]) > 0 {
        word.truncate(bare);
        word.push_str(instead);
    }
}

fn step_4(word: &mut String) {
    let Some((end, bare)) = STEP_4.iter().find_map(|end| Some((*end, word.strip_suffix(end)?.len()))) else { return };
    let before = &word.as_bytes()[..bare];
    let fits = end != "ion" || matches!(before.last(), Some(b's' | b't'));
    if fits && measure(before) > 1 {
        word.truncate(bare);
    }
}

fn step_5(word: &mut String) {
    if let Some(bare) = word.strip_suffix('e') {
        let m = measure(bare.as_bytes());
        if m > 1 || m == 1 && !short_end(bare.as_bytes()) {
            word.pop();
        }
    }
    if word.ends_with("ll") && measure(word.as_bytes()) > 1 {
        word.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the paper, and of the vocabulary that its author gives out.
    #[test]
    fn words_have_the_stems_of_the_paper() {
        for (word, expect) in [
            ("caresses", "caress"),
            ("ponies", "poni"),
            ("ties", "ti"),
            ("cats", "cat"),
            ("feed", "feed"),
            ("agreed", "agre"),
            ("plastered", "plaster"),
            ("bled", "bled"),
            ("motoring", "motor"),
            ("sing", "sing"),
            ("conflated", "conflat"),
            ("troubled", "troubl"),
            ("sized", "size"),
            ("hopping", "hop"),
            ("falling", "fall"),
            ("hissing", "hiss"),
            ("filing", "file"),
            ("happy", "happi"),
            ("sky", "sky"),
            ("relational", "relat"),
            ("conditional", "condit"),
            ("digitizer", "digit"),
            ("operator", "oper"),
            ("sensibiliti", "sensibl"),
            ("triplicate", "triplic"),
            ("hopeful", "hope"),
            ("goodness", "good"),
            ("revival", "reviv"),
            ("replacement", "replac"),
            ("adoption", "adopt"),
            ("probate", "probat"),
            ("cease", "ceas"),
            ("controlling", "control"),
            ("roll", "roll"),
            ("generalizations", "gener"),
            ("at", "at"),
            ("caf\u{e9}s", "caf\u{e9}s"),
            ("e0308", "e0308"),
        ] {
            let mut stemmed = word.to_owned();
            stem(&mut stemmed);
            assert_eq!(stemmed, expect, "{word}");
        }
    }
}
