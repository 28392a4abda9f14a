//! Where a long text is cut into passages.

use std::ops::Range;

/// How long a passage is, in columns: a character of a wide script counts twice, for it says as much.
pub const LONG: usize = 600;

/// A rest of up to so many columns is no passage of its own.
const REST: usize = LONG / 5;

/// Cuts a text into passages of about [`LONG`] columns: between paragraphs, else between lines, sentences or words. Together they
/// are the whole text.
pub fn passages(text: &str) -> Vec<Range<usize>> {
    let mut out = Vec::new();
    let mut from = 0;
    while let Some(end) = end(&text[from..]) {
        out.push(from..from + end);
        from += end;
    }
    if from < text.len() {
        out.push(from..text.len());
    }
    out
}

/// Columns that a text takes.
pub fn columns(text: &str) -> usize {
    text.chars().map(wide).sum()
}

fn wide(c: char) -> usize {
    1 + usize::from(u32::from(c) >= 0x0e00)
}

/// Where a text that is too long for one passage is cut; `None` where it is not.
fn end(text: &str) -> Option<usize> {
    let (mut columns, mut least, mut most) = (0, 0, None);
    for (at, c) in text.char_indices() {
        if columns <= LONG / 2 {
            least = at;
        }
        if columns + wide(c) > LONG && most.is_none() {
            most = Some(at);
        }
        columns += wide(c);
        if columns > LONG + REST {
            break;
        }
    }
    let most = most.filter(|_| columns > LONG + REST)?;
    let room = &text[least..most];
    let behind = |end: &str| room.rfind(end).map(|at| least + at + end.len());
    let sentence = || ["。", "！", "？", ". ", "! ", "? "].iter().filter_map(|end| behind(end)).max();
    Some(behind("\n\n").or_else(|| behind("\n")).or_else(sentence).or_else(|| behind(" ")).unwrap_or(most))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_texts_are_cut_where_they_pause() {
        let cut = |text: &str| passages(text).into_iter().map(|r| text[r].to_owned()).collect::<Vec<_>>();
        assert_eq!(cut(""), Vec::<String>::new());
        assert_eq!(cut("short"), ["short"]);
        let paragraph = "word ".repeat(80);
        let text = format!("{paragraph}\n\n{paragraph}\nline\n\n{paragraph}");
        assert_eq!(cut(&text)[0], format!("{paragraph}\n\n"));
        let lines = "a line of a log with some numbers 12345\n".repeat(100);
        assert!(cut(&lines).iter().all(|part| part.ends_with('\n') && part.len() <= LONG));
        let wide = "字".repeat(1000);
        assert!(cut(&wide).iter().all(|part| part.chars().count() <= (LONG + REST) / 2));
        // What is little more than a passage stays one.
        assert_eq!(cut(&"x".repeat(LONG + REST)).len(), 1);
    }

    proptest! {
        #[test]
        fn passages_are_the_whole_text(text in r"(\PC{0,300}[\n .。]{0,3}){0,8}") {
            let all = passages(&text);
            let whole: String = all.iter().map(|r| &text[r.clone()]).collect();
            prop_assert_eq!(&whole, &text);
            for part in all {
                prop_assert!(!part.is_empty() && columns(&text[part]) <= LONG + REST);
            }
        }
    }
}
