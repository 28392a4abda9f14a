//! The words of a text as they are searched: in lower case, without accents, as stems; of an identifier its parts and the whole;
//! of a script without spaces each character.

use std::borrow::Cow;

use super::stem::stem;

/// Characters of a word that count. What is longer is data, such as base64.
const LONGEST: usize = 64;

/// Calls `each` with every word of a text, in order.
pub(super) fn words(text: &str, mut each: impl FnMut(&str)) {
    let mut reader = Reader::default();
    let mut chars = text.chars().peekable();
    let mut before = ' ';
    while let Some(c) = chars.next() {
        if is_spaceless(c) {
            reader.end(&mut each);
            each(c.encode_utf8(&mut [0; 4]));
        } else if c.is_alphanumeric() {
            let next = chars.peek().copied().unwrap_or(' ');
            if c.is_uppercase() && (before.is_lowercase() || before.is_uppercase() && next.is_lowercase()) {
                reader.part(&mut each);
            }
            reader.push(c);
        } else if c == ',' && before.is_ascii_digit() && is_thousands(chars.clone()) {
            // 350,000 is one number, however it is written.
            continue;
        } else if is_mark(c) {
            continue;
        } else {
            reader.end(&mut each);
        }
        before = c;
    }
    reader.end(&mut each);
}

/// The words of a text in a row, as the index takes them.
pub fn indexed(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    words(text, |word| {
        out.push_str(word);
        out.push(' ');
    });
    out
}

/// A word in the making.
#[derive(Default)]
struct Reader {
    part: String,
    whole: String,
    parts: usize,
}

impl Reader {
    fn push(&mut self, c: char) {
        if self.part.len() < LONGEST {
            if c.is_ascii() {
                return self.part.push(c.to_ascii_lowercase());
            }
            match folded(c) {
                Cow::Borrowed(plain) => self.part.push_str(plain),
                Cow::Owned(same) => self.part.push_str(&same),
            }
        }
    }

    /// Ends a part of an identifier.
    fn part(&mut self, each: &mut impl FnMut(&str)) {
        if self.part.is_empty() {
            return;
        }
        if self.whole.len() < LONGEST {
            self.whole.push_str(&self.part);
        }
        self.parts += 1;
        stem(&mut self.part);
        each(&self.part);
        self.part.clear();
    }

    fn end(&mut self, each: &mut impl FnMut(&str)) {
        self.part(each);
        if self.parts > 1 {
            each(&self.whole);
        }
        self.parts = 0;
        self.whole.clear();
    }
}

/// Whether three digits follow, and no more.
fn is_thousands(rest: impl Iterator<Item = char>) -> bool {
    let mut rest = rest.map(|c| c.is_ascii_digit());
    rest.by_ref().take(3).filter(|is| *is).count() == 3 && rest.next() != Some(true)
}

/// Whether a character is of a script that sets no spaces between words, or puts endings to them that stems do not know: Thai,
/// Lao, Burmese, Khmer, Chinese, Japanese, Korean.
pub(super) fn is_spaceless(c: char) -> bool {
    matches!(c, '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'
        | '\u{3040}'..='\u{30ff}' | '\u{31f0}'..='\u{31ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7a3}' | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ff9f}' | '\u{20000}'..='\u{323af}')
        && c.is_alphanumeric()
}

/// Accents that stand behind their letter.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}')
}

/// A letter in lower case, without an accent where it is a Latin one.
fn folded(c: char) -> Cow<'static, str> {
    let lower = c.to_lowercase().next().unwrap_or(c);
    let plain = match lower {
        'à'..='å' | 'ā' | 'ă' | 'ą' => "a",
        'ç' | 'ć' | 'ĉ' | 'ċ' | 'č' => "c",
        'ď' | 'đ' => "d",
        'è'..='ë' | 'ē' | 'ĕ' | 'ė' | 'ę' | 'ě' => "e",
        'ĝ' | 'ğ' | 'ġ' | 'ģ' => "g",
        'ì'..='ï' | 'ĩ' | 'ī' | 'ĭ' | 'į' | 'ı' => "i",
        'ĺ' | 'ļ' | 'ľ' | 'ł' => "l",
        'ñ' | 'ń' | 'ņ' | 'ň' => "n",
        'ò'..='ö' | 'ø' | 'ō' | 'ŏ' | 'ő' => "o",
        'ŕ' | 'ŗ' | 'ř' => "r",
        'ś' | 'ŝ' | 'ş' | 'š' | 'ș' => "s",
        'ţ' | 'ť' | 'ț' => "t",
        'ù'..='ü' | 'ũ' | 'ū' | 'ŭ' | 'ů' | 'ű' | 'ų' => "u",
        'ý' | 'ÿ' => "y",
        'ź' | 'ż' | 'ž' => "z",
        'ß' => "ss",
        'æ' => "ae",
        'œ' => "oe",
        other => return Cow::Owned(other.to_string()),
    };
    Cow::Borrowed(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_as_they_are_searched() {
        for (text, expect) in [
            ("The cats were running.", "the cat were run "),
            ("getUserName", "get user name getusername "),
            ("parseHTTPRequest(x)", "pars http request parsehttprequest x "),
            ("user_id in src/store/mod.rs:12", "user id in src store mod rs 12 "),
            ("foo_bar::baz", "foo bar baz "),
            ("E0308 v2", "e0308 v2 "),
            ("$350,000 or 350000, 1,2 and 1,2345", "350000 or 350000 1 2 and 1 2345 "),
            ("Crème brûlée, Cre\u{300}me", "creme brule creme "),
            ("数据库 ok", "数 据 库 ok "),
            ("데이터", "데 이 터 "),
            ("", ""),
            ("\0 — *** \u{10ffff}", ""),
        ] {
            assert_eq!(indexed(text), expect, "{text}");
        }
        assert_eq!(indexed(&"a".repeat(10_000)).len(), LONGEST + 1);
    }
}
