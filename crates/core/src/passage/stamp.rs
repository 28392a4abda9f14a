//! The stamp by which a client says when something was said: a date before the first words of a message.

/// Bytes of a first line that may hold a stamp.
const LONGEST: usize = 64;

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// The date that a client put before a message, as it wrote it: in brackets, behind a word such as `Date:`, or by itself.
pub fn stamp(text: &str) -> Option<&str> {
    let line = text.trim_start().lines().next()?;
    let found = match line.chars().next()? {
        '[' => inside(&line[1..], ']')?,
        '(' => inside(&line[1..], ')')?,
        '<' => inside(&line[1..], '>')?,
        c if c.is_ascii_digit() => {
            let end = line.find(|c: char| !(c.is_ascii_digit() || "-/.:TZ+ ".contains(c))).unwrap_or(line.len());
            // A list's number is no date: `2023-05-08 12:30 Well` is one.
            line.get(..end.min(LONGEST)).filter(|found| found.len() >= "2023-5-8".len())?
        }
        _ => {
            let (key, rest) = line.split_once(':')?;
            let names = key.len() <= 24 && ["date", "time", "today"].iter().any(|w| key.to_lowercase().contains(w));
            rest.get(..rest.len().min(LONGEST)).filter(|_| names)?
        }
    };
    let found = found.trim_matches(|c: char| c.is_whitespace() || ":-".contains(c));
    is_day(found).then_some(found)
}

fn inside(rest: &str, close: char) -> Option<&str> {
    rest.split_once(close).map(|(inside, _)| inside).filter(|inside| inside.len() <= LONGEST)
}

/// Whether a text names a day: a year, and a month by its name or a month and a day by their numbers.
fn is_day(text: &str) -> bool {
    let numbers: Vec<u32> =
        text.split(|c: char| !c.is_ascii_digit()).filter(|n| n.len() <= 4).filter_map(|n| n.parse().ok()).collect();
    let year = numbers.iter().any(|n| (1900..2200).contains(n));
    let month = text.split(|c: char| !c.is_alphabetic()).any(|word| {
        let word = word.to_lowercase();
        word.len() >= 3 && MONTHS.iter().any(|month| word.starts_with(month))
    });
    year && numbers.len() >= if month { 2 } else { 3 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_of_clients() {
        for (text, expect) in [
            ("[1:56 pm on 8 May, 2023]\nCaroline: Hey!", Some("1:56 pm on 8 May, 2023")),
            ("[2023/05/20 (Sat) 02:21] What should I do?", Some("2023/05/20 (Sat) 02:21")),
            ("  [March-15-2024] I'm worried", Some("March-15-2024")),
            ("2024-03-15T10:30:00Z hello", Some("2024-03-15T10:30:00Z")),
            ("(2024年3月15日) 你好", Some("2024年3月15日")),
            ("Date: Tue, 5 Mar 2024\nhello", Some("Tue, 5 Mar 2024")),
            ("<2024-03-15> x", Some("2024-03-15")),
            ("[Image 1] [2023/05/20]", None),
            ("1. First, 2023 was a year", None),
            ("2023 was a year of 3 4 5", None),
            ("Hello: it is 8 May 2023", None),
            ("[see chapter 12 of 2023]", None),
            ("", None),
            ("[", None),
            ("[日本語", None),
        ] {
            assert_eq!(stamp(text), expect, "{text}");
        }
    }
}
