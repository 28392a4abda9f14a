//! `windowsill top` on a pseudo terminal of 80 columns and 24 lines: what stands on it, what keys do, and that the terminal is as it was
//! when it ends.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

use super::support::*;

const WIDTH: usize = 80;
const HEIGHT: usize = 24;

/// How long a picture may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal, and the program that runs on it.
struct Terminal {
    main: File,
    /// Its other side, kept open so that its settings can be asked for at the end.
    side: File,
    written: Arc<Mutex<Vec<u8>>>,
    child: Child,
    before: String,
}

impl Terminal {
    fn running(mut command: Command) -> Terminal {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let path = ptsname(&main, Vec::new()).unwrap().into_string().unwrap();
        let side = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let size = Winsize { ws_row: HEIGHT as u16, ws_col: WIDTH as u16, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&side, size).unwrap();
        let before = format!("{:?}", tcgetattr(&side).unwrap());
        let end = || side.try_clone().unwrap();
        let child = command.env("TERM", "xterm-256color").stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let main = File::from(main);
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut from, into) = (main.try_clone().unwrap(), Arc::clone(&written));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                into.lock().unwrap().extend_from_slice(&buffer[..n]);
            }
        });
        Terminal { main, side, written, child, before }
    }

    fn press(&mut self, keys: &str) {
        self.main.write_all(keys.as_bytes()).unwrap();
    }

    fn screen(&self) -> String {
        screen(&String::from_utf8_lossy(&self.written.lock().unwrap()))
    }

    /// Waits for a picture.
    #[track_caller]
    fn shows(&self, what: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen();
            if screen.contains(what) {
                return screen;
            }
            assert!(Instant::now() < until, "{what:?} is not shown:\n{screen}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the program has ended; the terminal is as it was.
    #[track_caller]
    fn ended(mut self, with: i32) {
        let code = self.child.wait().unwrap().code();
        let text = String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned();
        assert_eq!(code, Some(with), "{text:?}");
        assert_eq!(format!("{:?}", tcgetattr(&self.side).unwrap()), self.before, "raw mode is over");
        let until = Instant::now() + PATIENCE;
        while !String::from_utf8_lossy(&self.written.lock().unwrap()).contains("\u{1b}[?1049l") {
            assert!(Instant::now() < until, "the screen of before is back");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(String::from_utf8_lossy(&self.written.lock().unwrap()).contains("\u{1b}[?25h"), "the cursor is back");
    }
}

/// What a terminal shows after these bytes: characters, places, and a screen that is emptied.
fn screen(written: &str) -> String {
    let mut cells = vec![vec![' '; WIDTH]; HEIGHT];
    let (mut row, mut column) = (0, 0);
    let mut rest = written.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' if rest.peek() == Some(&'[') => {
                rest.next();
                let mut asked = String::new();
                let end = loop {
                    match rest.next() {
                        Some(c) if c.is_ascii_alphabetic() => break c,
                        Some(c) => asked.push(c),
                        None => return String::new(),
                    }
                };
                let mut numbers = asked.split(';').map(|n| n.parse::<usize>().unwrap_or(1));
                match end {
                    'H' => (row, column) = (numbers.next().unwrap_or(1) - 1, numbers.next().unwrap_or(1) - 1),
                    'J' => cells.iter_mut().for_each(|line| line.fill(' ')),
                    _ => {}
                }
            }
            '\n' => row += 1,
            '\r' => column = 0,
            c if !c.is_control() => {
                if let Some(cell) = cells.get_mut(row).and_then(|line| line.get_mut(column)) {
                    *cell = c;
                }
                column += 1;
            }
            '\u{1b}' if rest.peek().is_none() => {}
            c => panic!("{c:?} reached the terminal"),
        }
    }
    cells.into_iter().map(|line| line.into_iter().collect::<String>().trim_end().to_owned() + "\n").collect()
}

/// A conversation that can be folded, whose title is an attack on terminals.
fn hostile(proxy: &TestProxy) -> String {
    let mut sent = chat().user("\u{1b}]0;x\u{7}Garden\u{202e}");
    for n in 0..4 {
        sent = sent.assistant(&prose(n, 1_500)).user(&format!("And what about item {n}?"));
    }
    proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned()
}

#[test]
fn a_conversation_is_folded_unfolded_and_pinned_by_key() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let id = hostile(&proxy);
    let mut top = Terminal::running(proxy.command(&["top"]));
    let screen = top.shows("4,096");
    assert!(screen.contains("Garden") && screen.contains("1 conversation") && screen.contains("q quit"), "{screen}");
    assert!(screen.lines().count() <= HEIGHT && top.shows("tokens in").contains("reply: "), "{screen}");
    top.press("f");
    top.shows("Enter does it");
    top.press("the garden");
    top.shows("the garden");
    top.press("\r");
    top.shows("folded: ");
    let edits = proxy.get(&format!("/windowsill/conversations/{id}/view")).ok().json()["edits"].clone();
    assert!(edits.to_string().contains("\"fold\""), "{edits}");
    top.press("u");
    top.shows("Enter does it");
    top.press("\r");
    top.shows("undone: ");
    top.press("p");
    top.shows("Pin a text");
    top.press("Use tabs\r");
    top.shows("Enter does it");
    top.press("\r");
    top.shows("pinned: ");
    let pins = proxy.get(&format!("/windowsill/conversations/{id}/pins")).ok().json();
    assert_eq!(pins["pins"][0]["text"], "Use tabs", "{pins}");
    top.press("\r");
    top.shows("Largest messages");
    top.press("\u{1b}");
    top.shows("CONVERSATION");
    top.press("q");
    top.ended(0);
}

/// What waits for its reply is told, by how long it does.
#[test]
fn requests_under_way_are_seen() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let first = chat().user("Mend the harbor.");
    proxy.chat(&first).ok();
    let top = Terminal::running(proxy.command(&["top"]));
    let screen = top.shows("Mend the harbor.");
    assert!(!screen.contains("under way"), "{screen}");
    let gate = Gate::default();
    let held_back = gate.clone();
    fake.script(move |seen| match seen.is_main() {
        true => Play::Wait(held_back.clone(), Box::new(Play::Usual)),
        false => Play::Usual,
    });
    let mut conn = proxy.begin(&first.assistant("I do.").user("Take your time."));
    let screen = top.shows("1 request under way");
    assert!(screen.lines().any(|line| line.contains("Mend the harbor.") && line.contains('▸')), "{screen}");
    let list = proxy.get("/windowsill/conversations").ok().json();
    let told = &list["conversations"][0]["under_way"];
    assert!(
        told["requests"] == 1 && told["since_ms"].as_i64() > list["conversations"][0]["created_ms"].as_i64(),
        "{list}"
    );
    gate.open();
    conn.answer().ok();
    proxy.eventually("/windowsill/conversations", |list| list["conversations"][0]["under_way"].is_null());
}

#[test]
fn signals_leave_the_terminal_as_it_was() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    for signal in ["-TERM", "-INT", "-HUP"] {
        let top = Terminal::running(proxy.command(&["top"]));
        top.shows("No conversations yet");
        assert!(Command::new("kill").args([signal, &top.child.id().to_string()]).status().unwrap().success());
        top.ended(0);
    }
}

#[test]
fn without_a_terminal_or_a_proxy_it_says_what_to_do() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let out = proxy.cli(&["top"]);
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    assert!(out.stdout.is_empty() && String::from_utf8_lossy(&out.stderr).contains("windowsill context"), "{out:?}");
    let mut command = proxy.command(&["top"]);
    command.env("WINDOWSILL_LISTEN", Fake::absent().to_string());
    let top = Terminal::running(command);
    let screen = top.shows("windowsill serve");
    assert!(screen.contains("no windowsill answers"), "{screen}");
}

/// On a terminal a message is what it says; into a pipe it is as the client sent it.
#[test]
fn a_message_is_recalled_as_it_reads() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let proxy = TestProxy::before(&fake);
    let sent = chat().user("Two\nlines and a \u{1b}[31mcolor.");
    let id = proxy.chat(&sent).ok().header("x-windowsill-conversation").unwrap().to_owned();
    let at = format!("{}:0", &id[..7]);
    let terminal = Terminal::running(proxy.command(&["recall", &at]));
    let screen = terminal.shows("color.");
    assert!(screen.starts_with("Two\nlines and a \\u{1b}[31mcolor.\n"), "{screen}");
    let text = String::from_utf8_lossy(&terminal.written.lock().unwrap()).into_owned();
    assert!(text.ends_with('\n'), "the prompt stands on a line of its own: {text:?}");
    let piped = proxy.cli(&["recall", &at]).stdout;
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&piped).unwrap(), sent.messages[0]);
}
