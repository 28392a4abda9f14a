//! Output that moves the cursor up to draw over its own lines (`docker pull`, `docker compose`, installers): what a terminal shows in
//! the end.

/// Longest output that is drawn (bytes), and most columns and lines that a move may skip.
const MOST: usize = 4 << 20;
const FAR: usize = 2_000;

/// The lines that are left after all moves of the cursor; `None` where it never goes up, or to places that depend on the screen's size.
pub(super) fn drawn(text: &str) -> Option<String> {
    let goes_up = |(at, _): (usize, &str)| {
        let rest = &text.as_bytes()[at + 2..];
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        matches!(rest.get(digits), Some(b'A' | b'F'))
    };
    if text.len() > MOST || !text.match_indices("\u{1b}[").any(goes_up) {
        return None;
    }
    let mut screen = Screen { lines: vec![Vec::new()], row: 0, column: 0, skipped: 0 };
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => {
                let Some(after) = rest.as_str().strip_prefix('[') else {
                    rest = behind(rest.as_str()).chars();
                    continue;
                };
                let length = after.find(|c: char| c.is_ascii_alphabetic() || !c.is_ascii())?;
                let (asked, end) = (&after[..length], after[length..].chars().next()?);
                rest = after[length + end.len_utf8()..].chars();
                screen.moved(asked, end)?;
            }
            '\n' => screen.next(),
            '\r' => screen.column = 0,
            '\u{8}' => screen.column = screen.column.saturating_sub(1),
            c if c.is_control() && c != '\t' => {}
            c => screen.put(c),
        }
        // Cells that were skipped take memory, too.
        if screen.skipped > text.len() + FAR {
            return None;
        }
    }
    let lines = screen.lines.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned());
    Some(lines.collect::<Vec<_>>().join("\n"))
}

/// What follows a sequence that is none of the cursor's: a title, a character set, a single letter.
fn behind(rest: &str) -> &str {
    if let Some(title) = rest.strip_prefix(']') {
        let end = title.find(['\u{7}', '\u{1b}', '\n']).unwrap_or(title.len());
        return title[end..].trim_start_matches('\u{7}');
    }
    let mut chars = rest.chars();
    if matches!(chars.next(), Some('(' | ')' | '#' | '%')) {
        chars.next();
    }
    chars.as_str()
}

struct Screen {
    lines: Vec<Vec<char>>,
    row: usize,
    column: usize,
    /// Cells that nothing was written into.
    skipped: usize,
}

impl Screen {
    fn next(&mut self) {
        self.row += 1;
        self.column = 0;
        if self.lines.len() <= self.row {
            self.lines.push(Vec::new());
        }
    }

    /// A move does not go below what is there.
    fn down(&mut self, by: usize) {
        self.row = (self.row + by).min(self.lines.len() - 1);
    }

    fn put(&mut self, c: char) {
        let line = &mut self.lines[self.row];
        if line.len() <= self.column {
            self.skipped += self.column - line.len();
            line.resize(self.column + 1, ' ');
        }
        line[self.column] = c;
        self.column += 1;
    }

    /// Does what a sequence asks for; colors and the like change nothing. `None` for a place on a screen of unknown size.
    fn moved(&mut self, asked: &str, end: char) -> Option<()> {
        let number = || asked.split(';').next().and_then(|n| n.parse().ok());
        let by = number().unwrap_or(1).clamp(1, FAR);
        match end {
            'A' => self.row = self.row.saturating_sub(by),
            'B' => self.down(by),
            'C' => self.column = (self.column + by).min(FAR),
            'D' => self.column = self.column.saturating_sub(by),
            'E' => {
                self.down(by);
                self.column = 0;
            }
            'F' => (self.row, self.column) = (self.row.saturating_sub(by), 0),
            'G' => self.column = by - 1,
            'K' => {
                let line = &mut self.lines[self.row];
                match number() {
                    None | Some(0) => line.truncate(self.column),
                    Some(2) => line.clear(),
                    _ => line.iter_mut().take(self.column).for_each(|cell| *cell = ' '),
                }
            }
            'J' if number().unwrap_or(0) == 0 => {
                self.lines.truncate(self.row + 1);
                self.lines[self.row].truncate(self.column);
            }
            'H' | 'f' | 'J' | 'd' | 'S' | 'T' | 'L' | 'M' => return None,
            _ => {}
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_drawn_over_stand_as_they_were_last() {
        let mut text = String::from("Pulling\na: waiting\nb: waiting\n");
        for n in 1..=50 {
            text += &format!("\u{1b}[2A\u{1b}[2K\r\u{1b}[32ma: {n}/50\u{1b}[0m\n\u{1b}[2K\rb: {}/50\n", n / 2);
        }
        assert_eq!(drawn(&(text + "Done\n")).as_deref(), Some("Pulling\na: 50/50\nb: 25/50\nDone\n"));
        assert_eq!(drawn("1 of 2\n\u{1b}[1F2 of 2\u{1b}[K\n\u{1b}[Jend").as_deref(), Some("2 of 2\nend"));
        assert_eq!(drawn("x\u{1b}[9Ay\u{1b}[3Dz\u{1b}[").as_deref(), None, "cut off");
        assert_eq!(drawn("x\u{1b}[9Ay\u{1b}[3Dz").as_deref(), Some("zy"));
        assert_eq!(drawn("\u{1b}]0;title\u{7}a\u{1b}(B\u{1b}[1Ab\u{1b}7").as_deref(), Some("ab"));
        assert_eq!(drawn(&format!("\u{1b}[1A{}", "\u{1b}[2000Cx\n".repeat(9_000))), None, "mostly skipped");
        for other in ["plain", "\u{1b}[31mred\u{1b}[0m", "\u{1b}[2J\u{1b}[Htop", "a\u{1b}[1A\u{1b}[3;4Hb"] {
            assert_eq!(drawn(other), None, "{other:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_is_ever_longer_than_it_may_be(text in "(\u{1b}\\[[0-9;]{0,5}[A-Km]|[a-zé\n\r\u{8}]){0,60}") {
            if let Some(drawn) = drawn(&text) {
                let escapes = drawn.matches('\u{1b}').count();
                proptest::prop_assert_eq!(escapes, 0);
            }
        }
    }
}
