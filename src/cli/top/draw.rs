//! How `windowsill top` looks: a pure function of what it knows. Every text of others is made harmless before it stands here, and
//! what is too long for its place is cut.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState, Wrap};

use super::state::{Dialog, Over, Stage, State, What};
use crate::cli::context::{gauge, one};
use crate::cli::paint::{Paint, bar};

/// Cells of the bar of a window in the list.
const BAR: usize = 10;

/// Least and most lines of the gauge of the conversation that is looked at: a narrow screen wraps them.
const GAUGE: u16 = 8;
const GAUGE_MOST: u16 = 12;

/// Least lines of the list: its heading, and two conversations.
const LIST: u16 = 3;

const KEYS: &str = " ↑↓ choose   Enter all of it   f fold   u undo   p pin   ? help   q quit";

const HELP: &str = "\
↑ ↓ j k      choose a conversation (PgUp, PgDn, Home, End)
Enter        all that is known of it
f            fold it now, with a focus if you type one
u            the view before its last change
p            pin a text that the model reads through every fold
Esc          close what is open, and cancel what is under way
q, Ctrl-C    quit

Each action says its price first; Enter does it.
The bar is the window: # is the prompt, with what is kept for the reply.";

/// The whole screen.
pub(super) fn screen(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    let spare = area.height.saturating_sub(2);
    let middle = window(state, area.width);
    let wanted = middle.as_ref().map_or(GAUGE, |(_, lines)| (*lines).clamp(GAUGE, GAUGE_MOST));
    let gauge_lines = if spare >= GAUGE + LIST + 4 { wanted.min(spare - LIST - 4) } else { 0 };
    let most = (spare - gauge_lines) / 2;
    let rows = u16::try_from(state.rows.len().max(1)).unwrap_or(u16::MAX).saturating_add(1);
    let [head, list, gauge, events, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(rows.clamp(LIST, most.max(LIST))),
        Constraint::Length(gauge_lines),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    heading(frame, head, state);
    conversations(frame, list, state);
    if let Some((text, _)) = middle.filter(|_| gauge.height > 0) {
        frame.render_widget(text, gauge);
    }
    happened(frame, events, state);
    let said = state.said.as_deref().map_or_else(|| KEYS.to_owned(), |said| format!(" {said}"));
    frame.render_widget(Paragraph::new(said).style(soft()), foot);
    match &state.over {
        Over::Nothing => {}
        Over::Help => over(frame, " windowsill top ", Text::raw(HELP), 13),
        Over::Detail(from) => detail(frame, state, *from),
        Over::Dialog(dialog) => ask(frame, state, dialog),
    }
}

fn soft() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// The color of a severity, where colors are wanted.
fn severity(state: &State, severity: Option<&str>) -> Style {
    match severity.filter(|_| state.colors) {
        Some("red") => Style::new().fg(Color::Red),
        Some("yellow") => Style::new().fg(Color::Yellow),
        Some("green") => Style::new().fg(Color::Green),
        _ => Style::new(),
    }
}

fn heading(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let n = state.rows.len();
    // What is wrong needs the room.
    let count = match state.trouble {
        Some(_) => "  ".to_owned(),
        None => format!("  {n} conversation{}{}  ", if n == 1 { "" } else { "s" }, under_way(state)),
    };
    let health = match &state.trouble {
        None => Span::styled("the server answers", severity(state, Some("green"))),
        Some(why) => Span::styled(why.as_str(), severity(state, Some("red")).add_modifier(Modifier::BOLD)),
    };
    let line = Line::from(vec![
        Span::styled(" windowsill", bold()),
        Span::raw(format!("  http://{}", state.address)),
        Span::styled(count, soft()),
        health,
    ]);
    frame.render_widget(Paragraph::new(line), area);
}

fn conversations(frame: &mut Frame<'_>, area: Rect, state: &State) {
    if state.rows.is_empty() {
        let hint =
            format!("\n  No conversations yet: point a client at http://{}, or try windowsill launch.", state.address);
        frame.render_widget(Paragraph::new(hint).wrap(Wrap { trim: false }), area);
        return;
    }
    let rows = state.rows.iter().map(|row| {
        let style = severity(state, row.severity.as_deref());
        let full = row.pressure.map_or("    -".to_owned(), |pressure| format!("{:4.0}%", (pressure * 100.0).round()));
        let filled = row.pressure.map_or(0, |pressure| (pressure.clamp(0.0, 1.0) * 1000.0).round() as u64);
        // What is under way is told by how long it is.
        let when = match row.since_ms {
            Some(begun) => format!("▸{}", lasted(begun, state.now)),
            None => since(row.updated_ms, state.now),
        };
        Row::new([
            Cell::from(row.title.as_str()),
            Cell::from(row.model.as_str()),
            Cell::from(format!("{}{full}", bar(&[(filled, '#')], 1000, BAR))).style(style),
            Cell::from(Text::from(row.prompt.as_str()).alignment(Alignment::Right)),
            Cell::from(Text::from(when).alignment(Alignment::Right)),
        ])
    });
    let widths = [
        Constraint::Fill(3),
        Constraint::Fill(1),
        Constraint::Length(u16::try_from(BAR + 5).unwrap_or(15)),
        Constraint::Length(17),
        Constraint::Length(7),
    ];
    let right = |text: &'static str| Cell::from(Text::from(text).alignment(Alignment::Right));
    let head = Row::new([Cell::from(" CONVERSATION"), "MODEL".into(), "WINDOW".into(), right("TOKENS"), right("LAST")]);
    let table = Table::new(rows, widths)
        .header(head.style(soft()))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .column_spacing(1);
    let mut chosen = TableState::new().with_selected(state.chosen());
    frame.render_stateful_widget(table, area, &mut chosen);
}

/// How many requests wait for their replies.
fn under_way(state: &State) -> String {
    match state.rows.iter().map(|row| row.under_way).sum::<u64>() {
        0 => String::new(),
        1 => ", 1 request under way".to_owned(),
        n => format!(", {n} requests under way"),
    }
}

/// How long ago something was, in a narrow column.
fn since(then_ms: i64, now_ms: i64) -> String {
    match now_ms.saturating_sub(then_ms) {
        ..2_000 => "now".to_owned(),
        _ => lasted(then_ms, now_ms),
    }
}

/// How long something has lasted.
fn lasted(then_ms: i64, now_ms: i64) -> String {
    let seconds = now_ms.saturating_sub(then_ms).max(0) / 1000;
    match seconds {
        0..=89 => format!("{seconds} s"),
        90..=5_399 => format!("{} min", (seconds + 30) / 60),
        5_400..=129_599 => format!("{} h", (seconds + 1_800) / 3_600),
        _ => format!("{} d", (seconds + 43_200) / 86_400),
    }
}

/// What fills the window of the conversation that is looked at, and how many lines that takes on a screen of this width.
fn window(state: &State, width: u16) -> Option<(Paragraph<'static>, u16)> {
    let seen = state.seen()?;
    let mut text = gauge(seen, Paint::none());
    if let Some(n) = seen["fold_in_requests"].as_u64() {
        let first = text.find('\n').unwrap_or(text.len());
        text.insert_str(first, &format!("  · folds in about {n} request{}", if n == 1 { "" } else { "s" }));
    }
    // An empty line between the figures and the bar has no place here.
    // Nor has what the first line says already.
    let told = |line: &&str| line.trim().is_empty() || line.trim().starts_with("folds in about");
    let lines = text.lines().filter(|line| !told(line)).map(|line| format!(" {line}"));
    let style = severity(state, seen["severity"].as_str());
    let styled = lines.enumerate().map(|(n, line)| Line::styled(line, if n < 2 { style } else { Style::new() }));
    let styled: Vec<Line<'static>> = styled.collect();
    // A line that is wrapped at words takes a little more than its width says.
    let room = usize::from(width.max(1));
    let lines: usize = styled.iter().map(|line| (line.width() + line.width() / 10).div_ceil(room).max(1)).sum();
    let block = Block::new().title_top(ruled(" Window ", width)).title_style(soft());
    let text = Paragraph::new(styled).block(block).wrap(Wrap { trim: false });
    Some((text, u16::try_from(lines + 1).unwrap_or(u16::MAX)))
}

/// A heading in a line as wide as the screen.
fn ruled(name: &str, width: u16) -> String {
    let rest = usize::from(width).saturating_sub(name.chars().count() + 2);
    format!("──{name}{}", "─".repeat(rest))
}

/// The newest of what happened, the newest last.
fn happened(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let room = usize::from(area.height.saturating_sub(1));
    let newest = state.events.iter().skip(state.events.len().saturating_sub(room));
    let lines = newest.map(|line| Line::styled(format!(" {}", line.text), severity(state, line.severity)));
    let block = Block::new().title_top(ruled(" Requests and rewrites ", area.width)).title_style(soft());
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).block(block), area);
}

/// A box in the middle of the screen.
fn over(frame: &mut Frame<'_>, title: &str, text: Text<'_>, height: u16) {
    let all = frame.area();
    let width = all.width.saturating_sub(4).min(100);
    let height = height.min(all.height);
    let area = Rect { x: all.x + (all.width - width) / 2, y: all.y + (all.height - height) / 2, width, height };
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }).block(Block::bordered().title(title)), area);
}

/// All that is known of a conversation, as `windowsill context ID` prints it.
fn detail(frame: &mut Frame<'_>, state: &State, from: usize) {
    let text = state.seen().map_or_else(|| "…".to_owned(), |seen| one(seen, Paint::none(), state.now));
    let lines: Vec<&str> = text.lines().collect();
    let area = frame.area();
    let room = usize::from(area.height.saturating_sub(2));
    let from = from.min(lines.len().saturating_sub(room));
    let shown: Vec<Line<'_>> = lines[from..].iter().map(|line| Line::raw(*line)).collect();
    frame.render_widget(Clear, area);
    let foot = format!(" {} of {} lines · ↑↓ · Esc closes ", (from + room).min(lines.len()), lines.len());
    let block = Block::bordered().title_bottom(foot);
    frame.render_widget(Paragraph::new(shown).block(block), area);
}

/// A question before something is done.
fn ask(frame: &mut Frame<'_>, state: &State, dialog: &Dialog) {
    let (title, field) = match dialog.what {
        What::Fold => (" Fold now ", Some("Focus, if you like: ")),
        What::Undo => (" Undo the last change ", None),
        What::Pin => (" Pin a text ", Some("Text: ")),
    };
    let mut lines = vec![Line::styled(dialog.title.as_str(), bold()), Line::default()];
    if let Some(field) = field {
        let cursor = if dialog.takes_text() { "▏" } else { "" };
        lines.push(Line::from(vec![Span::styled(field, soft()), Span::raw(format!("{}{cursor}", tail(&dialog.text)))]));
        lines.push(Line::default());
    }
    let (said, keys, style) = match &dialog.stage {
        Stage::Typing => (String::new(), "Enter asks what it costs · Esc leaves it", Style::new()),
        Stage::Pricing => ("Working out what it costs …".to_owned(), "Esc leaves it", soft()),
        Stage::Priced(words) => (words.clone(), "Enter does it · Esc leaves it", Style::new()),
        Stage::Refused(why) => (why.clone(), "Esc closes", severity(state, Some("red"))),
        Stage::AtWork(since) => {
            let seconds = state.now.saturating_sub(*since).max(0) / 1000;
            (format!("At work for {seconds} s …"), "Esc cancels it", Style::new())
        }
    };
    lines.push(Line::styled(said, style));
    lines.push(Line::default());
    lines.push(Line::styled(keys, soft()));
    over(frame, title, Text::from(lines), 13);
}

/// The end of a long text, where it is typed.
fn tail(text: &str) -> String {
    let skipped = text.chars().count().saturating_sub(160);
    let rest: String = text.chars().skip(skipped).collect();
    if skipped > 0 { format!("…{rest}") } else { rest }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::super::state::{News, tests::two};
    use super::*;

    fn drawn(state: &State, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen(frame, state)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
        (0..height).map(row).collect()
    }

    fn full() -> State {
        let mut state = two();
        let seen = json!({"id": "c1", "severity": "yellow", "fold_in_requests": 3, "state": {"window": 16_384, "prompt_tokens": 12_000,
            "pressure": 0.8, "prompt_tokens_source": "counted with the model's own vocabulary", "window_source": "asked of /props (n_ctx)",
            "regions": {"system": 300, "tools": 1_100, "brief": 800, "output_reserved": 1_024}, "lines": {"clear_at": 9_000, "fold_at": 13_000, "limit": 15_000}},
            "history": {"user": 500, "assistant": 700, "results": 8_600, "other": 20}});
        state.hear(News::Seen("c1".into(), seen));
        for n in 0..50 {
            let data =
                json!({"role": "main", "prompt_tokens": 1_000 + n, "completion_tokens": 5, "milliseconds": 1_200});
            state.hear(News::Event(
                json!({"time_ms": n * 1000, "conversation": "c1", "kind": "model_usage", "data": data}),
            ));
        }
        state
    }

    #[test]
    fn everything_stands_on_the_smallest_usual_screen() {
        let screen = drawn(&full(), 80, 24);
        let all = screen.join("\n");
        // What is wrapped stands there all the same.
        let flat = screen.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
        for what in [
            "http://127.0.0.1:8484",
            "2 conversations",
            "Fix the cart",
            "qwen3:8b",
            " 80%",
            "12,000 of 16,384",
            "folds in about 3 requests",
            "fold",
            "1,049 tokens in",
            // The legend whole, its end included.
            "results",
            "/ kept for the reply 1,024",
            "f fold",
            "q quit",
        ] {
            assert!(all.contains(what) || flat.contains(what), "{what}\n{all}");
        }
        assert!(all.contains("\\u{1b}[31mEvil\\u{202e}") && !all.contains('\u{1b}'), "{all}");
    }

    /// Whatever is open, and however small the screen, nothing panics.
    #[test]
    fn any_size_is_drawn() {
        use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
        for keys in ["", "?", "\n", "f", "u", "ptext\n"] {
            let mut state = full();
            for c in keys.chars() {
                let code = if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) };
                state.hear(News::Key(KeyEvent::new(code, KeyModifiers::NONE)));
            }
            for (width, height) in [(1, 1), (3, 2), (20, 5), (40, 10), (80, 24), (200, 60)] {
                drawn(&state, width, height);
            }
            assert_eq!(drawn(&State::new("a:1".into(), false, 0), 80, 24).len(), 24);
        }
    }
}
