//! Tool outputs with what matters in them: made up by seed, so that it is known what was planted; and, for real ones, found
//! by words that each tool prints before what counts. Knows nothing of how previews are made.

use std::collections::BTreeSet;

use regex::Regex;

/// One output, and what a reader must not miss in it.
pub(crate) struct Output {
    /// What it is.
    pub(crate) name: String,
    /// The tool that was called.
    pub(crate) tool: &'static str,
    /// Its arguments as JSON.
    pub(crate) arguments: &'static str,
    pub(crate) text: String,
    /// Messages of errors, each once, without the place they were found at.
    pub(crate) errors: BTreeSet<String>,
    /// Names of tests that failed.
    pub(crate) tests: BTreeSet<String>,
    /// Names of files, without folders.
    pub(crate) files: BTreeSet<String>,
}

/// Share of `wanted` that stands in a preview; `None` where there is none wanted.
pub(crate) fn share(wanted: &BTreeSet<String>, preview: &str) -> Option<(usize, usize)> {
    let kept = wanted.iter().filter(|w| preview.contains(w.as_str())).count();
    (!wanted.is_empty()).then_some((kept, wanted.len()))
}

const WORDS: [&str; 16] = [
    "lease", "buffer", "cursor", "parser", "socket", "render", "token", "config", "journal", "shard", "replica",
    "metric", "widget", "tenant", "quota", "digest",
];

/// Numbers that look random and are the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % n
    }

    fn word(&mut self) -> &'static str {
        WORDS[self.roll(WORDS.len())]
    }
}

/// Output of one tool: what its lines look like, and what goes wrong on some of them.
struct Made<'a> {
    dice: Dice,
    out: &'a mut Output,
    bytes: usize,
}

impl Made<'_> {
    /// Writes ordinary lines up to a share of the whole.
    fn until(&mut self, percent: usize, mut line: impl FnMut(&mut Dice, usize) -> String) {
        let mut n = self.out.text.lines().count();
        while self.out.text.len() < self.bytes / 100 * percent {
            let next = line(&mut self.dice, n);
            self.out.text.push_str(&next);
            self.out.text.push('\n');
            n += 1;
        }
    }

    fn say(&mut self, line: &str) {
        self.out.text.push_str(line);
        self.out.text.push('\n');
    }
}

type Writer = fn(&mut Made<'_>);

/// Made-up outputs of about `bytes` bytes each.
pub(crate) fn made(bytes: usize) -> Vec<Output> {
    let all: [(&str, &'static str, &'static str, Writer); 10] = [
        ("cargo test", "bash", r#"{"command":"cargo test"}"#, cargo_test),
        ("cargo build", "bash", r#"{"command":"cargo build"}"#, cargo_build),
        ("pytest -v", "bash", r#"{"command":"pytest -v"}"#, pytest),
        ("go test -v", "bash", r#"{"command":"go test -v ./..."}"#, go_test),
        ("tsc", "run", r#"{"cmd":"npx tsc"}"#, tsc),
        ("jest", "bash", r#"{"command":"npx jest"}"#, jest),
        ("service log", "bash", r#"{"command":"journalctl -u api"}"#, service),
        ("make -j8", "bash", r#"{"command":"make -j8"}"#, make),
        ("grep -rn", "bash", r#"{"command":"grep -rn lease ."}"#, grep),
        ("git diff", "bash", r#"{"command":"git diff"}"#, diff),
    ];
    let mut made = Vec::new();
    for (seed, (name, tool, arguments, write)) in all.into_iter().enumerate() {
        let mut out = empty(name.to_owned(), tool, arguments);
        write(&mut Made { dice: Dice(0x9E37_79B9_7F4A_7C15 ^ (seed as u64 + 1)), out: &mut out, bytes });
        made.push(out);
    }
    made
}

fn empty(name: String, tool: &'static str, arguments: &'static str) -> Output {
    let (errors, tests, files) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    Output { name, tool, arguments, text: String::new(), errors, tests, files }
}

fn cargo_test(m: &mut Made<'_>) {
    let passing = |d: &mut Dice, n: usize| format!("test {}::{}::handles_case_{n} ... ok", d.word(), d.word());
    for n in 0..6 {
        m.until(10 + n * 12, passing);
        let name = format!("{}::tests::keeps_the_{}_{n}", WORDS[n], WORDS[n + 5]);
        m.say(&format!("test {name} ... FAILED"));
        m.out.tests.insert(name);
    }
    m.until(80, passing);
    m.say("\nfailures:\n");
    for (n, name) in m.out.tests.clone().into_iter().enumerate() {
        let file = format!("{}_{n}.rs", WORDS[n]);
        let said = format!("lost {} of {} leases", n + 2, n * 7 + 9);
        m.say(&format!("---- {name} stdout ----\n\nthread '{name}' panicked at crates/core/src/{file}:{}:9:\n{said}\nnote: run with `RUST_BACKTRACE=1`\n", 40 + n));
        m.out.files.insert(file);
        m.out.errors.insert(said);
    }
    m.until(98, |d, n| format!("    at trace {n} of {}", d.word()));
    m.say("\ntest result: FAILED. 9120 passed; 6 failed; 3 ignored; 0 measured; 0 filtered out; finished in 41.90s\n");
    m.out.errors.insert("9120 passed; 6 failed".into());
}

fn cargo_build(m: &mut Made<'_>) {
    let line = |d: &mut Dice, n: usize| match n % 40 {
        0 => {
            format!("warning: unused variable: `{}`\n  --> crates/a/src/{}.rs:{}:{}", d.word(), d.word(), n, d.roll(80))
        }
        _ => format!("   Compiling {}-{} v0.{}.{}", d.word(), d.word(), d.roll(40), d.roll(40)),
    };
    for n in 0..9 {
        m.until(10 + n * 9, line);
        let file = format!("{}_{}.rs", WORDS[n], WORDS[15 - n]);
        let said = format!("no method named `{}_{n}` found for struct `{}`", WORDS[n], WORDS[n + 3]);
        m.say(&format!(
            "error[E0599]: {said}\n  --> crates/net/src/{file}:{}:14\n   |\n91 |     pool.{}();\n   |          ^^^^ method not found\n",
            n + 90,
            WORDS[n]
        ));
        m.out.errors.insert(said);
        m.out.files.insert(file);
    }
    m.until(99, line);
    m.say("error: could not compile `net` (lib) due to 9 previous errors; 700 warnings emitted");
    m.out.errors.insert("could not compile `net`".into());
}

fn pytest(m: &mut Made<'_>) {
    m.say("============================= test session starts ==============================\ncollected 9000 items\n");
    let passing = |d: &mut Dice, n: usize| {
        format!("tests/{}/test_{}.py::TestAll::test_case_{n} PASSED   [ {}%]", d.word(), d.word(), n % 100)
    };
    let mut failed = Vec::new();
    for n in 0..7 {
        m.until(8 + n * 9, passing);
        let (file, name) = (format!("test_{}_{n}.py", WORDS[n]), format!("test_{}_is_{}", WORDS[n], WORDS[n + 8]));
        m.say(&format!("tests/unit/{file}::{name} FAILED   [ {}%]", n * 9));
        failed.push((file, name));
    }
    m.until(70, passing);
    m.say("\n=================================== FAILURES ===================================");
    for (n, (file, name)) in failed.iter().enumerate() {
        let said = format!("assert {} == {}", n * 31 + 2, n * 17 + 5);
        m.say(&format!("_________________________ {name} _________________________\n"));
        m.until(70 + n * 4, |d, n| format!("        {} = {}({n})", d.word(), d.word()));
        m.say(&format!(">       {said}\nE       {said}\n\ntests/unit/{file}:{}: AssertionError", n + 30));
        m.out.errors.insert(said);
    }
    m.say("=========================== short test summary info ============================");
    for (file, name) in failed {
        m.say(&format!("FAILED tests/unit/{file}::{name} - AssertionError"));
        m.out.tests.insert(name);
        m.out.files.insert(file);
    }
    m.say("=================== 7 failed, 8993 passed in 131.02s (0:02:11) ===================");
    m.out.errors.insert("7 failed, 8993 passed".into());
}

fn go_test(m: &mut Made<'_>) {
    let passing = |d: &mut Dice, n: usize| {
        format!("=== RUN   Test{}{n}\n--- PASS: Test{}{n} (0.0{}s)", d.word(), d.word(), d.roll(9))
    };
    for (n, word) in WORDS.iter().take(8).enumerate() {
        m.until(10 + n * 10, passing);
        let (name, file) = (format!("TestKeeps{word}{n}"), format!("{word}_{n}_test.go"));
        let said = format!("got {} replicas, want {}", n + 1, n * 3 + 20);
        m.say(&format!("=== RUN   {name}\n    {file}:{}: {said}\n--- FAIL: {name} (0.42s)", n + 51));
        m.out.tests.insert(name);
        m.out.files.insert(file);
        m.out.errors.insert(said);
    }
    m.until(99, passing);
    m.say("FAIL\nFAIL\texample.org/store/journal\t12.031s\nok  \texample.org/store/api\t0.310s\nFAIL");
    m.out.errors.insert("example.org/store/journal".into());
}

fn tsc(m: &mut Made<'_>) {
    let kinds = [
        ("TS2307", "Cannot find module"),
        ("TS2580", "Cannot find name"),
        ("TS7006", "Parameter implicitly has an any type"),
        ("TS2345", "Argument is not assignable to parameter of type"),
        ("TS2339", "Property does not exist on type"),
    ];
    m.until(99, |d, n| {
        let (code, said) = kinds[if n % 50 < 40 { 0 } else { n % 5 }];
        let (file, line) = (n / 60 % 40, d.roll(800));
        format!(
            "packages/web/src/{}/{}{file}.ts({line},{}): error {code}: {said} '{}'.",
            WORDS[file % 16],
            WORDS[file % 7],
            n % 60,
            d.word()
        )
    });
    for (code, said) in kinds {
        m.out.errors.insert(format!("{code}: {said}"));
    }
    let files = m.out.text.lines().filter_map(|l| l.split('(').next()).filter_map(|p| p.rsplit('/').next());
    m.out.files = files.map(str::to_owned).collect();
}

fn jest(m: &mut Made<'_>) {
    let passing = |d: &mut Dice, n: usize| match n % 12 {
        0 => format!("PASS src/{}/{}.test.ts", d.word(), d.word()),
        _ => format!("    ✓ {} the {} number {n} ({} ms)", d.word(), d.word(), d.roll(60)),
    };
    for n in 0..5 {
        m.until(15 + n * 17, passing);
        let (file, name) =
            (format!("{}-{n}.test.ts", WORDS[n]), format!("keeps every {} after {}", WORDS[n], WORDS[n + 9]));
        let said = format!("Received: \"{} {}\"", WORDS[n + 2], n * 13);
        m.say(&format!(
            "FAIL src/ui/{file}\n  ● {name}\n\n    expect(received).toBe(expected) // Object.is equality\n\n    Expected: \"{}\"\n    {said}\n\n      at Object.<anonymous> (src/ui/{file}:{}:21)\n",
            WORDS[n], n + 70
        ));
        m.out.files.insert(file);
        m.out.tests.insert(name);
        m.out.errors.insert(said);
    }
    m.until(99, passing);
    m.say("Test Suites: 5 failed, 700 passed, 705 total\nTests:       5 failed, 8100 passed, 8105 total\nTime:        71.2 s");
    m.out.errors.insert("5 failed, 8100 passed".into());
}

fn service(m: &mut Made<'_>) {
    let line = |d: &mut Dice, n: usize| {
        let (second, ms) = (n / 60 % 60, n % 60);
        format!(
            "2026-11-21T09:{second:02}:{ms:02}.{:03}Z INFO  api::{} request served path=/v1/{}/{} status=200 ms={}",
            d.roll(999),
            d.word(),
            d.word(),
            d.roll(90_000),
            d.roll(400)
        )
    };
    for n in 0..6 {
        m.until(12 + n * 14, line);
        let said = format!("{} pool exhausted after {} tries", WORDS[n], n * 3 + 4);
        for repeat in 0..5 {
            m.say(&format!("2026-11-21T09:{:02}:{repeat:02}.001Z ERROR api::{} {said}", n * 9, WORDS[n + 3]));
        }
        m.out.errors.insert(said);
    }
    m.until(99, line);
    m.say("2026-11-21T09:59:59.900Z FATAL api::main shutting down: journal is read-only");
    m.out.errors.insert("journal is read-only".into());
}

fn make(m: &mut Made<'_>) {
    let line = |d: &mut Dice, n: usize| {
        format!(
            "gcc -O2 -Wall -I./include -I../deps/include -DNDEBUG -c src/{}/{}_{n}.c -o build/{}_{n}.o",
            d.word(),
            d.word(),
            d.word()
        )
    };
    for n in 0..4 {
        m.until(20 + n * 22, line);
        let (file, said) = (
            format!("{}_core{n}.c", WORDS[n]),
            format!("'struct {}' has no member named '{}{n}'", WORDS[n], WORDS[n + 6]),
        );
        m.say(&format!(
            "src/core/{file}:{}:17: error: {said}\n  {} | x->{};\n      |  ^~",
            n + 200,
            n + 200,
            WORDS[n + 6]
        ));
        m.out.errors.insert(said);
        m.out.files.insert(file);
    }
    m.until(99, line);
    m.say("make[1]: *** [Makefile:88: build/lease_core0.o] Error 1\nmake: *** [Makefile:12: all] Error 2");
    m.out.errors.insert("Makefile:88: build/lease_core0.o".into());
}

fn grep(m: &mut Made<'_>) {
    m.until(99, |d, n| {
        let file = n / 120 % 60;
        format!(
            "./src/{}/{}_{file}.rs:{}:    let {} = {}.lease({});",
            WORDS[file % 16],
            WORDS[file % 11],
            n + 3,
            d.word(),
            d.word(),
            d.roll(90)
        )
    });
    let files = m.out.text.lines().filter_map(|l| l.split(':').next()).filter_map(|p| p.rsplit('/').next());
    m.out.files = files.map(str::to_owned).collect();
}

fn diff(m: &mut Made<'_>) {
    for n in 0..24 {
        let file = format!("{}_{n}.rs", WORDS[n % 16]);
        let path = format!("src/{}/{file}", WORDS[n % 9]);
        m.say(&format!("diff --git a/{path} b/{path}\nindex 1a2b3c4..5d6e7f8 100644\n--- a/{path}\n+++ b/{path}\n@@ -1,90 +1,99 @@ fn {}()", WORDS[n % 16]));
        m.until((n + 1) * 4, |d, n| format!("{}    let {} = {}({n});", ["+", "-", " "][n % 3], d.word(), d.word()));
        m.out.files.insert(file);
    }
}

/// What marks the lines that matter in outputs of real tools: patterns whose first group is the message, the name of a
/// failed test, the path of a file.
struct Signs {
    errors: Vec<Regex>,
    tests: Vec<Regex>,
    files: Vec<Regex>,
}

impl Signs {
    fn new() -> Signs {
        let all = |patterns: &[&str]| {
            patterns.iter().map(|p| Regex::new(p).expect("it is a constant")).collect::<Vec<Regex>>()
        };
        Signs {
            errors: all(&[
                r"^error(?:\[E\d+\])?: (.+)$",
                r"[:)] (?:fatal )?error(?: [A-Z]+\d+)?: (.+)$",
                r"^E   +(\S*(?:Error|Exception)\b.*)$",
                r"^\S*(?:Error|Exception): (.+)$",
                r"^npm (?:ERR!|error) ([A-Za-z].+)$",
                r"^\[ERROR\] ([^ ].+)$",
                r"^\d\S* .*?(?:ERROR|FATAL) +[^ ]+ ([^ ].+)$",
            ]),
            tests: all(&[
                r"^FAILED \S+?::(\S+)",
                r"^test (\S+) \.\.\. FAILED$",
                r"--- FAIL: (\w+)",
                r"^(?:FAIL|ERROR): (\w+)",
            ]),
            files: all(&[
                r"^(\S+?)[(:]\d+(?:[,:]\d+\)?)?: (?:fatal )?error",
                r"^ +--> (\S+?):\d+:\d+$",
                r"^(?:ERROR|FAILED) (\S+\.py)",
                r"^\+\+\+ b/(\S+)$",
                r"^(\./[^:\s]+|[\w./-]+/[\w.-]+):\d+:",
            ]),
        }
    }

    fn found(patterns: &[Regex], text: &str, name: impl Fn(&str) -> String) -> BTreeSet<String> {
        let lines = || text.lines().map(str::trim_end);
        let of = |p: &Regex| lines().filter_map(|l| Some(name(p.captures(l)?.get(1)?.as_str()))).collect::<Vec<_>>();
        patterns.iter().flat_map(of).filter(|s| s.len() > 2).collect()
    }
}

/// Outputs of real tools, from a folder of them.
pub(crate) fn real(folder: &std::path::Path) -> std::io::Result<Vec<Output>> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder)?.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|n| n != "INDEX.json");
    names.sort();
    let signs = Signs::new();
    let mut all = Vec::new();
    for name in names {
        let (tool, arguments) = match name.as_str() {
            n if n.starts_with("grep") => ("bash", r#"{"command":"grep -rn 'fn ' ."}"#),
            n if n.starts_with("ls") => ("bash", r#"{"command":"ls -laR"}"#),
            n if n.ends_with(".js") || n.ends_with(".csv") => ("read_file", r#"{"path":"data/file"}"#),
            _ => ("bash", r#"{"command":"./run.sh"}"#),
        };
        let text = String::from_utf8_lossy(&std::fs::read(folder.join(&name))?).into_owned();
        let mut out = empty(name, tool, arguments);
        // Of a message its beginning tells it from others; numbers in it change from place to place.
        let message = |m: &str| m.trim().chars().take(48).collect::<String>().trim_end().to_owned();
        let base = |p: &str| p.rsplit(['/', '\\']).next().unwrap_or(p).to_owned();
        if !out.name.contains("diff") && !out.name.ends_with(".csv") && !out.name.ends_with(".js") {
            out.errors = Signs::found(&signs.errors, &text, message);
        }
        out.tests = Signs::found(&signs.tests, &text, str::to_owned);
        out.files = Signs::found(&signs.files, &text, base);
        out.text = text;
        all.push(out);
    }
    Ok(all)
}
