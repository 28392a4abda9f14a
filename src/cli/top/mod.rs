//! `windowsill top`: windows, what happens, and fold, undo and pin by key, in a terminal. It asks the running proxy over HTTP as any
//! client may, and draws; [`state`] says what a key does, [`draw`] how it looks. The terminal is as it was when it ends, also by a
//! signal or a panic.

mod draw;
mod state;

use std::pin::Pin;
use std::process::ExitCode;
use std::task::Poll;
use std::time::Duration;

use http::Method;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use windowsill::clock::now_ms;
use windowsill::config::Config;
use windowsill::proxy::{Error, TraceQuery, ask_running, follow_running, steer_running};

use self::state::{Ask, News, State};
use crate::{Failure, runtime};

/// How often the list is asked for where nothing happens, and ages are drawn.
const BEAT: Duration = Duration::from_secs(1);

/// How long the trace is left alone after its stream ended.
const AGAIN: Duration = Duration::from_secs(2);

/// Events of the past that the list of events begins with.
const BEFORE: usize = 100;

/// News that may wait for the next picture. Who tells more waits.
const WAITING: usize = 256;

/// Why it ends.
enum End {
    Asked,
    /// Nobody reads the keys any more.
    NoTerminal,
}

/// The terminal as it was, however the drawing ends.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Where the proxy is.
#[derive(Clone)]
struct Proxy {
    address: String,
    key: Option<String>,
}

impl Proxy {
    async fn get(&self, path: &str) -> Result<Value, Error> {
        ask_running(&self.address, self.key.as_deref(), Method::GET, path, None).await
    }

    async fn steer(&self, method: Method, of: (&str, &str), body: Option<&Value>) -> Result<Value, Error> {
        steer_running(&self.address, self.key.as_deref(), method, of, body).await
    }
}

pub(crate) fn run(config: &Config) -> Result<ExitCode, Failure> {
    use std::io::IsTerminal as _;
    if !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) {
        let hint = "`windowsill context` prints the same into a file or a pipe";
        return Err(Failure::Usage(format!("top draws on a terminal, and there is none\n  hint: {hint}")));
    }
    let key = config.api_key.as_ref().map(|key| key.expose().to_owned());
    let proxy = Proxy { address: config.listen.to_string(), key };
    let runtime = runtime()?;
    // Whatever is wrong is said on the terminal as it is.
    let rows = runtime.block_on(proxy.get("/windowsill/conversations"))?;
    let mut state = State::new(proxy.address.clone(), !config.no_color, now_ms());
    state.hear(News::Rows(Ok(rows)));
    // Signals are caught from before the first picture on: one that came earlier would leave the terminal as it is drawn on.
    let mut stop = Box::pin(stop());
    if runtime.block_on(std::future::poll_fn(|cx| Poll::Ready(stop.as_mut().poll(cx).is_ready()))) {
        return Ok(ExitCode::SUCCESS);
    }
    let ended = {
        let restored = Restored;
        let mut terminal = ratatui::try_init()?;
        let ended = runtime.block_on(show(&mut terminal, &mut state, &proxy, stop));
        // First the cursor, then the screen.
        drop(terminal);
        drop(restored);
        ended
    };
    // What still runs asks the proxy, or waits for a key.
    runtime.shutdown_background();
    match ended? {
        End::Asked => Ok(ExitCode::SUCCESS),
        End::NoTerminal => Ok(ExitCode::FAILURE),
    }
}

/// Draws, and takes in news, until somebody ends it.
async fn show(
    terminal: &mut DefaultTerminal,
    state: &mut State,
    proxy: &Proxy,
    mut stop: Pin<Box<impl Future<Output = ()>>>,
) -> Result<End, Failure> {
    let (tell, mut news) = mpsc::channel(WAITING);
    keys(tell.clone());
    let mut work = Work { proxy: proxy.clone(), tell, tasks: JoinSet::new(), rows: false, steering: None };
    work.follow();
    work.look(state);
    let mut beat = tokio::time::interval(BEAT);
    loop {
        state.now = now_ms();
        terminal.draw(|frame| draw::screen(frame, state))?;
        let heard = tokio::select! {
            () = &mut stop => return Ok(End::Asked),
            heard = news.recv() => heard,
            Some(done) = work.tasks.join_next() => {
                // A task only ends badly by a panic, or as it was told to.
                if let Err(e) = done && e.is_panic() {
                    return Err(Failure::Bad(e.to_string()));
                }
                continue;
            }
            _ = beat.tick() => {
                work.look(state);
                continue;
            }
        };
        let Some(heard) = heard else { return Ok(End::NoTerminal) };
        if matches!(heard, News::NoTerminal) {
            return Ok(End::NoTerminal);
        }
        work.heard(&heard);
        if matches!(heard, News::Event(_)) {
            work.look(state);
        }
        match state.hear(heard) {
            None => {}
            Some(Ask::Quit) => return Ok(End::Asked),
            Some(ask) => work.on(ask, state),
        }
    }
}

/// Done at the next signal that ends a program.
async fn stop() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut hangup) = signal(SignalKind::hangup()) {
            tokio::select! {
                () = crate::stop() => {}
                _ = hangup.recv() => {}
            }
            return;
        }
    }
    crate::stop().await;
}

/// Reads keys on a thread of their own, which ends with the process.
fn keys(tell: mpsc::Sender<News>) {
    std::thread::spawn(move || {
        loop {
            let heard = match event::read() {
                Ok(Event::Key(key)) => News::Key(key),
                Ok(Event::Paste(text)) => News::Pasted(text),
                // A new size is drawn with the next picture.
                Ok(_) => News::Drawn,
                Err(_) => News::NoTerminal,
            };
            let over = matches!(heard, News::NoTerminal);
            if tell.blocking_send(heard).is_err() || over {
                return;
            }
        }
    });
}

/// What is asked of the proxy meanwhile.
struct Work {
    proxy: Proxy,
    tell: mpsc::Sender<News>,
    tasks: JoinSet<()>,
    /// Whether the list is asked for.
    rows: bool,
    steering: Option<AbortHandle>,
}

impl Work {
    /// Asks for the list and for what is known of the conversation that is looked at, unless that is under way.
    fn look(&mut self, state: &State) {
        if std::mem::replace(&mut self.rows, true) {
            return;
        }
        let (proxy, tell, at) = (self.proxy.clone(), self.tell.clone(), state.at().map(str::to_owned));
        self.tasks.spawn(async move {
            if let Some(id) = at
                && let Ok(seen) = proxy.steer(Method::GET, (&id, "insight"), None).await
            {
                let _ = tell.send(News::Seen(id, seen)).await;
            }
            let server = proxy.get("/readyz").await.map(drop);
            let _ = tell.send(News::Server(server.map_err(|e| e.to_string()))).await;
            let rows = proxy.get("/windowsill/conversations").await;
            let _ = tell.send(News::Rows(rows.map_err(|e| e.to_string()))).await;
        });
    }

    fn heard(&mut self, news: &News) {
        match news {
            News::Rows(_) => self.rows = false,
            News::Steered(_) => self.steering = None,
            _ => {}
        }
    }

    /// Reads the trace, again and again where its stream ends.
    fn follow(&mut self) {
        let (proxy, tell) = (self.proxy.clone(), self.tell.clone());
        self.tasks.spawn(async move {
            let mut last = Some(BEFORE);
            while !tell.is_closed() {
                let asked = TraceQuery { since: None, last, conversation: None, kinds: Vec::new() };
                // What cannot wait any longer is left out: the list of events is short.
                let told = |event: Value| {
                    last = None;
                    !matches!(tell.try_send(News::Event(event)), Err(mpsc::error::TrySendError::Closed(_)))
                };
                let _ = follow_running(&proxy.address, proxy.key.as_deref(), &asked, told).await;
                tokio::time::sleep(AGAIN).await;
            }
        });
    }

    fn on(&mut self, ask: Ask, state: &State) {
        match ask {
            Ask::Quit => {}
            Ask::Look => self.look(state),
            Ask::Cancel => {
                if let Some(steering) = self.steering.take() {
                    steering.abort();
                }
            }
            Ask::Steer { id, what, body } => {
                let (proxy, tell) = (self.proxy.clone(), self.tell.clone());
                self.steering = Some(self.tasks.spawn(async move {
                    let answer = proxy.steer(Method::POST, (&id, what), Some(&body)).await;
                    let _ = tell.send(News::Steered(answer.map_err(|e| e.to_string()))).await;
                }));
            }
        }
    }
}
