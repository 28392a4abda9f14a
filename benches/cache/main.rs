//! The study behind windowsill's cache economics: sessions replayed turn by turn, without a network, against a server that
//! only counts, by windowsill and by what else is done about a full window.
//!
//! `cargo bench --bench cache [-- --windows 4096,8192] [--kinds steady,mixed] [--rows 'large oracle',naive] [--seeds 1,2] [--set clear_at=0.7] [--from
//! session.json] [--trace]` prints a table
//! for each window and kind of session; `-- --tune` sweeps the thresholds. See docs/cache-economics.md.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

mod naive;
mod replay;
mod server;
mod sessions;
mod tally;
mod tune;

use std::time::Instant;

use windowsill::config::{self, Flags, ModelHints};
use windowsill::conversation::Tokens;
use windowsill::plan::{FoldAt, Policy, Strategy};
use windowsill::store::Store;

use naive::Naive;
use replay::{Setting, Writer, replay};
use sessions::{Kind, Session};
use tally::Tally;

/// Seeds of the sessions made here: those below 11 are for checking.
const SEEDS: [u64; 3] = [11, 12, 13];

/// How much longer than the window a recorded session must be to say something.
const LONG_ENOUGH: f64 = 1.5;

fn main() {
    // `cargo test --benches` only wants to see it build.
    if std::env::args().any(|a| a == "--test") {
        return;
    }
    let asked = Asked::read();
    let dir = std::env::temp_dir().join("windowsill-cache-bench");
    let store = Store::open(&dir).expect("a folder for temporary files can be written");
    let material = Material::read(&asked);
    for window in &asked.windows {
        if asked.tune {
            for background in [true, false] {
                tune::table(*window, material.of(*window, &asked), background, &store);
            }
            continue;
        }
        for (kind, sessions) in material.of(*window, &asked) {
            table(*window, kind, &sessions, &store, &asked);
        }
    }
}

/// What the command line asks for.
struct Asked {
    windows: Vec<Tokens>,
    kinds: Option<String>,
    rows: Option<String>,
    trace: bool,
    tune: bool,
    seeds: Vec<u64>,
    from: Vec<String>,
    set: String,
}

impl Asked {
    fn read() -> Asked {
        let args: Vec<String> = std::env::args().collect();
        let value = |flag: &str| args.iter().position(|a| a == flag).and_then(|at| args.get(at + 1)).cloned();
        let numbers = |flag: &str| -> Option<Vec<u64>> {
            Some(value(flag)?.split(',').map(|n| n.parse().expect("numbers between commas")).collect())
        };
        let windows = numbers("--windows").unwrap_or_else(|| vec![2048, 4096, 8192, 16_384, 32_768]);
        Asked {
            windows: windows.into_iter().map(|w| w as Tokens).collect(),
            kinds: value("--kinds"),
            rows: value("--rows"),
            trace: args.iter().any(|a| a == "--trace"),
            tune: args.iter().any(|a| a == "--tune"),
            from: value("--from").map(|list| list.split(',').map(str::to_owned).collect()).unwrap_or_default(),
            set: value("--set").unwrap_or_default(),
            seeds: numbers("--seeds").unwrap_or_else(|| SEEDS.to_vec()),
        }
    }

    fn wants(list: Option<&String>, name: &str) -> bool {
        list.is_none_or(|list| list.split(',').any(|part| name.contains(part)))
    }
}

/// All sessions.
pub(crate) struct Material {
    made: Vec<(Kind, Vec<Session>)>,
    agents: Vec<Session>,
    dialogues: Vec<Session>,
    given: Vec<Session>,
}

impl Material {
    fn read(asked: &Asked) -> Material {
        let made = [Kind::Steady, Kind::SteadyXl, Kind::Mixed]
            .map(|kind| (kind, asked.seeds.iter().map(|seed| sessions::made(kind, *seed)).collect()));
        let (agents, dialogues) = sessions::recorded();
        let given = asked.from.iter().filter_map(|path| sessions::given(path)).collect();
        Material { made: made.into(), agents, dialogues, given }
    }

    /// The sessions that say something at a window.
    fn of(&self, window: Tokens, asked: &Asked) -> Vec<(&'static str, Vec<&Session>)> {
        let long = |s: &&Session| f64::from(s.ideal(s.body.len())) > f64::from(window) * LONG_ENOUGH;
        let mut out: Vec<(&str, Vec<&Session>)> =
            self.made.iter().map(|(kind, all)| (kind.name(), all.iter().filter(long).collect())).collect();
        out.push(("agents", self.agents.iter().filter(long).collect()));
        out.push(("dialogues", self.dialogues.iter().filter(long).collect()));
        if !self.given.is_empty() {
            return vec![("given", self.given.iter().collect())];
        }
        // Results of three times the size are for windows that hold some.
        out.retain(|(kind, all)| {
            !all.is_empty() && (*kind != "steady-xl" || window >= 16_384) && Asked::wants(asked.kinds.as_ref(), kind)
        });
        out
    }
}

/// The policy a model of a size gets, by the same rules as in service.
pub(crate) fn policy(model: &str) -> Policy {
    let none = config::load(&Flags::default()).expect("the defaults are valid");
    none.policy(model, &ModelHints { parameters: None, template: None }, None).policy
}

/// Models by whose profile the rows are named.
const MODELS: [(&str, &str); 3] = [("large", "some-model"), ("medium", "qwen2.5:7b"), ("small", "smollm2:135m")];

/// What a row of the table does with a session.
type Replay<'a> = Box<dyn Fn(&Session, Tokens) -> Tally + 'a>;

fn rows<'a>(store: &'a Store, asked: &Asked) -> Vec<(String, Replay<'a>)> {
    let mut out: Vec<(String, Replay<'a>)> = Vec::new();
    for (size, model) in MODELS {
        let policy = tune::with(&policy(model), &asked.set);
        for (writer, background) in
            [(Writer::Oracle, true), (Writer::Blank, true), (Writer::Oracle, false), (Writer::Blank, false)]
        {
            let said = if writer == Writer::Oracle { "oracle" } else { "blank" };
            let when = if background { "ahead" } else { "waited for" };
            let fold_at = if background { policy.fold_at } else { FoldAt::Line };
            let setting = Setting { policy: Policy { fold_at, ..policy.clone() }, background, writer };
            let row: Replay<'a> = Box::new(move |s, window| replay(s, window, &setting, store));
            out.push((format!("{size} {said} {when}"), row));
        }
        let policy = Policy { strategy: Strategy::Truncate, ..policy };
        let setting = Setting { policy, background: true, writer: Writer::Blank };
        out.push((format!("{size} truncate"), Box::new(move |s, window| replay(s, window, &setting, store))));
    }
    for (name, way) in [
        ("direct", Naive::Direct),
        ("naive: clear one a turn", Naive::ClearOne),
        ("naive: summarize at the wall", Naive::Summarize),
        ("naive: drop the oldest", Naive::Drop),
    ] {
        out.push((name.to_owned(), Box::new(move |s, window| naive::replay(s, window, way))));
    }
    out
}

fn table(window: Tokens, kind: &str, sessions: &[&Session], store: &Store, asked: &Asked) {
    let started = Instant::now();
    println!("\nwindow {window}, {kind}: {} sessions", sessions.len());
    println!(
        "{:<29}{:>10}{:>7}{:>7}{:>7}{:>24}{:>7}{:>7}{:>7}{:>6}{:>6}{:>7}{:>6}{:>6}{:>6}{:>6}",
        "",
        "answered",
        "k=1",
        "k=4",
        "/new",
        "H+S+K of T",
        "bound",
        "/bound",
        "helper",
        "folds",
        "other",
        "again",
        "mean",
        "max",
        "known",
        "+call"
    );
    for (name, act) in rows(store, asked) {
        if !Asked::wants(asked.rows.as_ref(), &name) {
            continue;
        }
        let mut sum = Tally::default();
        for session in sessions {
            let tally = act(session, window);
            if asked.trace {
                trace(&name, session, &tally);
            }
            sum.add(tally);
        }
        row(&name, &sum);
    }
    println!("({:.1} s)", started.elapsed().as_secs_f64());
}

fn row(name: &str, sum: &Tally) {
    let answered = match sum.refused_at {
        Some(at) if sum.sessions == 1 => format!("{} of {}", at - 1, sum.turns),
        _ => format!("{}/{}", sum.answered, sum.turns),
    };
    let sizes = sum.sizes().map_or("-".to_owned(), |[h, s, k, t]| format!("{h}+{s}+{k} of {t}"));
    let bound = sum.bound();
    let folds = sum.rewrites.iter().filter(|r| r.brief.is_some()).count();
    let or_none = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.2}"));
    let share =
        |part: f64| if sum.wanted == 0 { "-".to_owned() } else { format!("{:.0}%", part * 100.0 / sum.wanted as f64) };
    println!(
        "{name:<29}{answered:>10}{:>7.2}{:>7.2}{:>7.2}{sizes:>24}{:>7}{:>7}{:>6.1}%{:>6}{:>6}{:>7}{:>5.0}%{:>5.0}%{:>6}{:>6}",
        sum.over_ideal(sum.one),
        sum.over_ideal(sum.four),
        sum.over_fresh(),
        or_none(bound),
        or_none(bound.map(|b| sum.over_fresh() / b)),
        sum.helper_one as f64 * 100.0 / sum.one.max(1) as f64,
        folds,
        sum.rewrites.len() - folds,
        sum.again(),
        sum.filled * 100.0 / sum.answered.max(1) as f64,
        sum.largest * 100.0,
        share(sum.visible),
        share(sum.reachable),
    );
}

fn trace(name: &str, session: &Session, tally: &Tally) {
    let Tally { turns, answered, one, ideal, fresh, helpers, helper_one, .. } = tally;
    println!(
        "  {name} / {}: {answered} of {turns} answered; {one} evaluated, {ideal} ideal, {fresh} new; {helpers} helper calls of {helper_one}",
        session.name
    );
    for r in &tally.rewrites {
        let brief = r.brief.map_or(String::new(), |b| format!(", brief {b}"));
        println!(
            "    turn {:3}: {} -> {} kept, {} freed, {} again{brief}: {}",
            r.turn, r.before, r.head, r.freed, r.again, r.why
        );
    }
}
