//! What a user may write in `config.toml`, the environment and flags: what wins, and what every mistake is answered.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use windowsill::config::{
    self, Config, Environment, Flags, LogFormat, ModelHints, NumCtx, Problem, Resolved, SummaryModel, UpstreamKind,
};
use windowsill::plan::{Policy, Size, Strategy};

/// The crate's folder.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files of a folder with an extension, by name.
pub(crate) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == extension));
    paths.sort();
    paths
}

/// Compares a message with the `.txt` beside its input; with `BLESS=1` in the environment, writes it instead.
pub(crate) fn expect_file(input: &Path, actual: &str) {
    let path = input.with_extension("txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(actual, expected, "{} is not answered as {} says; run with BLESS=1", input.display(), path.display());
}

/// A folder with a `config.toml`, an environment and flags.
pub(crate) struct Case {
    folder: tempfile::TempDir,
    environment: Environment,
    flags: Flags,
}

impl Case {
    pub(crate) fn new(toml: &str) -> Case {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.toml"), toml).unwrap();
        let vars = BTreeMap::from([("HOME".to_owned(), "/home/someone".to_owned())]);
        let environment = Environment { vars, cwd: folder.path().to_owned() };
        Case { folder, environment, flags: Flags::default() }
    }

    pub(crate) fn var(mut self, name: &str, value: &str) -> Case {
        self.environment.vars.insert(name.to_owned(), value.to_owned());
        self
    }

    fn flags(mut self, flags: Flags) -> Case {
        self.flags = flags;
        self
    }

    pub(crate) fn file(self, path: &str, text: &str) -> Case {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub(crate) fn try_load(&self) -> Result<Config, Vec<Problem>> {
        config::load_from(&self.flags, &self.environment)
    }

    pub(crate) fn load(&self) -> Config {
        self.try_load().unwrap_or_else(|problems| panic!("{}", config::report(&problems, "nothing was started")))
    }

    fn problems(&self) -> String {
        config::report(&self.try_load().expect_err("must be refused"), "nothing was started")
    }
}

fn resolve(config: &Config, model: &str) -> Resolved {
    config.policy(model, &ModelHints::default(), None)
}

/// Value and source of a setting for a model.
fn source<'a>(resolved: &'a Resolved, key: &str) -> (&'a str, &'a str) {
    let (_, value, source) = resolved.sources.iter().find(|(name, ..)| name == key).expect(key);
    (value, source)
}

/// The config of `packaging/kustomize` starts, and names each server that its manifests start.
#[test]
fn the_config_of_the_manifests_is_a_good_one() {
    let read = |file: &str| std::fs::read_to_string(root().join("packaging/kustomize").join(file)).unwrap();
    let config = Case::new(&read("config.toml")).var("WINDOWSILL_API_KEY", "secret").load();
    let servers = read("llama.yaml");
    assert!(servers.contains(&format!("replicas: {}", config.upstreams.len())), "{servers}");
    for (n, upstream) in config.upstreams.iter().enumerate() {
        assert_eq!(
            (&*upstream.name, &*upstream.url),
            (&*format!("llama-{n}"), &*format!("http://llama-{n}.llama:8080"))
        );
    }
    assert_eq!(config.listen.port(), 8484);
}

#[test]
fn every_bad_config_is_answered_in_full() {
    let folder = root().join("tests/config/bad");
    let inputs = files(&folder, "toml");
    for input in &inputs {
        let flags = Flags { config: Some(input.clone()), serves: true, ..Flags::default() };
        let vars = BTreeMap::from([("HOME".to_owned(), "/home/someone".to_owned())]);
        let problems = config::load_from(&flags, &Environment { vars, cwd: folder.clone() });
        let problems = problems.err().unwrap_or_else(|| panic!("{} is accepted", input.display()));
        let text = config::report(&problems, "nothing was started").replace(&folder.display().to_string(), "…");
        assert!(
            !text.contains("sk-very") && !text.contains("987654321") && !text.contains("me:secret"),
            "a secret is shown: {text}"
        );
        expect_file(input, &text);
    }
    assert_eq!(inputs.len(), 44);
    assert_eq!(files(&folder, "txt").len(), inputs.len(), "an expected message without its input");
}

#[test]
fn the_embedded_file_is_the_defaults_of_the_planner() {
    let config = Case::new("").load();
    let resolved = resolve(&config, "stub");
    assert_eq!(resolved.policy, Policy::default());
    assert_eq!((resolved.profile.as_str(), resolved.size), ("default", None));
    assert_eq!((resolved.background, resolved.recall, resolved.summary_model), (true, true, SummaryModel::Own));
    assert!(resolved.sources.iter().all(|(_, _, source)| source == "default"), "{:?}", resolved.sources);
    assert_eq!(config.listen.to_string(), "127.0.0.1:8484");
    assert_eq!(config.data_dir, Path::new("/home/someone/.local/share/windowsill"));
    assert_eq!(config.window.num_ctx, NumCtx::Loaded);
    assert_eq!((config.window.output_reserved, config.window.memory_headroom), (1024, 0.08));
    assert!(config.upstreams.is_empty() && config.api_key.is_none());
    let limits = config.limits;
    assert_eq!((limits.max_body_bytes, limits.max_inflight_bytes), (64 << 20, 512 << 20));
    assert_eq!((limits.max_header_bytes, limits.max_connections), (64 << 10, 1024));
    assert_eq!((limits.max_connections_per_peer, limits.body_idle_seconds, limits.drain_seconds), (256, 30, 30));
    assert!(config.allowed_hosts.is_empty() && config.allowed_origins.is_empty());
    assert_eq!((config.log.format, config.log.filter.as_str()), (LogFormat::Text, "info"));
}

#[test]
fn the_repositorys_own_config_changes_nothing() {
    let own = Case::new(config::DEFAULT_FILE).load();
    let none = Case::new("").load();
    assert_eq!(resolve(&own, "stub").policy, resolve(&none, "stub").policy);
    assert_eq!((own.listen, own.window, own.limits), (none.listen, none.window, none.limits));
    let resolved = resolve(&own, "stub");
    let (value, from) = source(&resolved, "clear_at");
    assert_eq!(value, "0.75");
    assert!(from.starts_with("config.toml:"), "{from}");
}

/// What the comments of `config.toml` offer can be had by taking the `#` away.
#[test]
fn every_commented_setting_is_accepted() {
    let bare = |line: &str| {
        let setting = line.strip_prefix("# ").filter(|rest| rest.contains(" = \"") || rest.starts_with("[["));
        setting.unwrap_or(line).replace('…', "sk-x").replace("~/.config/windowsill/profiles", "mine")
    };
    let text: Vec<String> = config::DEFAULT_FILE.lines().map(bare).collect();
    let config = Case::new(&text.join("\n")).file("mine/x.toml", "[match]\nnames = ['x']\n").load();
    assert_eq!(config.upstreams.len(), 2);
    let model = config.upstreams[1].model.as_ref().expect("a model");
    assert!(model.chat_template_file.as_ref().is_some_and(|file| file.ends_with("models/qwen3.jinja")), "{model:?}");
    assert_eq!(model.kv_type.map(|types| (types.k.name, types.v.name)), Some(("q8_0", "q8_0")));
    assert!(config.api_key.is_some() && config.upstreams[0].api_key.is_some());
    assert_eq!(config.data_dir, Case::new("").load().data_dir);
    assert!(config.profiles.iter().any(|profile| profile.name == "x"));
    assert_eq!(
        config.keys.iter().map(|key| (key.name.as_str(), key.scope.as_str())).collect::<Vec<_>>(),
        [("ann", "team")]
    );
}

const FILE: &str = "
listen = '127.0.0.1:1111'
data_dir = 'record'
[window]
num_ctx = 4096
[context]
clear_at = 0.7
keep_recent = 9
never_clear = ['read_file']
";

#[test]
fn what_wins() {
    let default = |key| source(&resolve(&Case::new("").load(), "qwen3:8b"), key).1.to_owned();
    assert_eq!(default("keep_recent"), "default");
    assert_eq!(default("clear_at"), "default [size.medium]");

    let config = Case::new(FILE).load();
    let unknown = resolve(&config, "stub");
    assert_eq!(source(&unknown, "clear_at"), ("0.7", "config.toml:7"));
    assert_eq!(source(&unknown, "never_clear"), ("[\"read_file\"]", "config.toml:9"));
    let qwen = resolve(&config, "qwen3:8b");
    assert_eq!(
        source(&qwen, "clear_at"),
        ("0.7", "config.toml:7"),
        "the file wins over what is the default for a size"
    );
    assert_eq!(source(&qwen, "summarize_at"), ("0.65", "default [size.medium]"), "and leaves it what it does not set");

    let own = "[match]\nnames = ['qwen3*']\n[context]\nclear_at = 0.55\n";
    let case = Case::new(&format!("profile_dir = 'mine'\n{FILE}")).file("mine/own.toml", own);
    let qwen = resolve(&case.load(), "qwen3:8b");
    assert_eq!(source(&qwen, "clear_at"), ("0.55", "profile own"), "a profile wins over the file");
    assert_eq!(source(&qwen, "keep_recent").0, "9", "and leaves it what it does not set");

    let config = Case::new(FILE)
        .var("WINDOWSILL_CONTEXT_CLEAR_AT", "0.65")
        .var("WINDOWSILL_CONTEXT_NEVER_CLEAR", "a, b")
        .var("WINDOWSILL_LISTEN", "127.0.0.1:2222")
        .load();
    let qwen = resolve(&config, "qwen3:8b");
    assert_eq!(source(&qwen, "clear_at"), ("0.65", "environment WINDOWSILL_CONTEXT_CLEAR_AT"));
    assert_eq!(qwen.policy.results.never_clear, ["a", "b"]);
    assert_eq!(config.listen.port(), 2222);

    let flags = Flags {
        listen: Some("127.0.0.1:3333".to_owned()),
        num_ctx: Some("32768".to_owned()),
        data_dir: Some("/elsewhere".into()),
        log: Some("json".to_owned()),
        ..Flags::default()
    };
    let case = Case::new(FILE).var("WINDOWSILL_LISTEN", "127.0.0.1:2222").var("WINDOWSILL_LOG", "text").flags(flags);
    let config = case.load();
    assert_eq!(config.listen.port(), 3333);
    assert_eq!(config.window.num_ctx, NumCtx::Fixed(32768));
    assert_eq!(config.data_dir, Path::new("/elsewhere"));
    assert_eq!(config.log.format, LogFormat::Json);
    let listen = config.sources.iter().find(|(key, ..)| key == "listen").unwrap();
    assert_eq!(listen.2, "flag --listen");
}

/// Sizes have tables of their own, for every family; each place's `[size.…]` lies over its `[context]`.
#[test]
fn models_of_a_size_get_what_its_table_says() {
    let file = "[context]\nkeep_recent = 9\nsummarize_to = 0.2\n[size.small]\nkeep_recent = 3\n[size.large]\nfold_at = 'line'\n";
    let config = Case::new(file).load();
    let of = |model: &str, key: &str| source(&resolve(&config, model), key).0.to_owned();
    for (model, fold_at, keep_recent, summarize_at) in [
        ("anything-1b", "line", "3", "0.5"),
        ("anything-8b", "line", "9", "0.65"),
        ("anything-70b", "line", "9", "0.85"),
        ("anything", "wall", "9", "0.85"),
        ("Llama-3.2-3B.Q4_K_M", "line", "9", "0.65"),
    ] {
        let found = ["fold_at", "keep_recent", "summarize_at"].map(|key| of(model, key));
        assert_eq!(found, [fold_at, keep_recent, summarize_at], "{model}");
        assert_eq!(of(model, "summarize_to"), "0.2");
    }
    let config = Case::new(file).var("WINDOWSILL_SIZE_SMALL_SUMMARIZE_AT", "0.7").load();
    let small = resolve(&config, "anything-1b");
    assert_eq!(source(&small, "summarize_at"), ("0.7", "environment WINDOWSILL_SIZE_SMALL_SUMMARIZE_AT"));
    assert_eq!(source(&resolve(&config, "anything-8b"), "summarize_at").0, "0.65");
    let slip = Case::new("").var("WINDOWSILL_SIZE_SMALL_SUMARIZE_AT", "0.7").problems();
    assert!(slip.contains("did you mean `WINDOWSILL_SIZE_SMALL_SUMMARIZE_AT`?"), "{slip}");
    let bare = Case::new("").var("WINDOWSILL_TOOLS", "auto").var("WINDOWSILL_MODEL", "x").problems();
    assert!(bare.contains("did you mean `WINDOWSILL_CONTEXT_TOOLS`?") && !bare.contains("MODEL"), "{bare}");
    let wrong = Case::new("[size.small]\nsummarize_to = 0.9\n").problems();
    assert!(
        wrong.contains("`summarize_to` (0.9, config.toml:2) must be below `summarize_at` (0.5, default [size.small])"),
        "{wrong}"
    );
}

#[test]
fn the_requests_header_picks_the_profile() {
    let config = Case::new(FILE).var("WINDOWSILL_CONTEXT_KEEP_RECENT", "3").load();
    let resolved = config.policy("stub", &ModelHints::default(), Some(" smollm2 "));
    assert_eq!(resolved.profile, "smollm2");
    assert_eq!(source(&resolved, "evict_over"), ("0.15", "default [size.small]"), "its models are small");
    assert_eq!(source(&resolved, "keep_recent"), ("3", "environment WINDOWSILL_CONTEXT_KEEP_RECENT"));
    assert_eq!(resolved.warning, None);
    assert_eq!(resolved.because, "the request asked for profile `smollm2`; small (from its profile)");

    let unknown = config.policy("qwen3:8b", &ModelHints::default(), Some("nope"));
    assert_eq!(unknown.profile, "qwen3");
    assert_eq!(unknown.warning.as_deref(), Some("there is no profile `nope`"));
}

#[test]
fn a_threshold_from_above_pushes_the_target_below_it_aside() {
    let config = Case::new("").var("WINDOWSILL_CONTEXT_CLEAR_TO", "0.45").load();
    let small = resolve(&config, "smollm2:135m");
    assert_eq!(small.policy.clear_to, 0.45);
    assert!(small.policy.clear_at > 0.45, "{:?}", small.policy);
    assert!(source(&small, "clear_at").1.starts_with("default [size.small], raised from 0.35"), "{:?}", small.sources);
}

#[test]
fn paths_start_where_they_are_written() {
    let case = Case::new("").file("etc/config.toml", "data_dir = 'record'");
    let flags = Flags { config: Some("etc/config.toml".into()), ..Flags::default() };
    let case = case.flags(flags);
    assert_eq!(case.load().data_dir, case.path("etc/record"));
    let case = case.var("WINDOWSILL_DATA_DIR", "here");
    assert_eq!(case.load().data_dir, case.path("here"));
    assert_eq!(Case::new("data_dir = '~/w'").load().data_dir, Path::new("/home/someone/w"));
    assert_eq!(Case::new("").var("XDG_DATA_HOME", "/xdg").load().data_dir, Path::new("/xdg/windowsill"));
    let relative = Case::new("").var("XDG_DATA_HOME", "xdg").load();
    assert_eq!(relative.data_dir, Path::new("/home/someone/.local/share/windowsill"), "XDG says: absolute, or unset");
}

#[test]
fn the_first_file_found_is_the_only_one() {
    let bare = tempfile::tempdir().unwrap();
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(home.path().join(".config/windowsill")).unwrap();
    std::fs::write(home.path().join(".config/windowsill/config.toml"), "listen = '127.0.0.1:7'").unwrap();
    let vars = BTreeMap::from([("HOME".to_owned(), home.path().display().to_string())]);
    let mut environment = Environment { vars, cwd: bare.path().to_owned() };
    let load = |environment: &Environment| config::load_from(&Flags::default(), environment).unwrap();
    assert_eq!(load(&environment).listen.port(), 7);
    std::fs::write(bare.path().join("config.toml"), "[window]\noutput_reserved = 5").unwrap();
    let config = load(&environment);
    assert_eq!((config.listen.port(), config.window.output_reserved), (8484, 5));
    assert_eq!(config.file, Some(bare.path().join("config.toml")));
    environment.vars.clear();
    environment.cwd = home.path().to_owned();
    let problems = config::load_from(&Flags::default(), &environment).unwrap_err();
    assert_eq!(
        config::report(&problems, "nothing was started"),
        "error: environment: there is no `HOME` to keep the record in\n  \
         hint: set `data_dir`, or give --data-dir\n1 problem; nothing was started\n"
    );
}

#[test]
fn upstreams_of_flags_environment_and_file() {
    let file = "
[[upstream]]
name = 'gpu'
url = 'http://127.0.0.1:11434/'
kind = 'ollama'
api_key = 'sk-file'
[[upstream]]
url = 'HTTPS://Example.org/v1'
";
    let config = Case::new(file).load();
    let brief = |config: &Config| -> Vec<(String, String, UpstreamKind, Option<String>)> {
        let one = |upstream: &config::UpstreamConfig| {
            let key = upstream.api_key.as_ref().map(|key| key.expose().to_owned());
            (upstream.name.clone(), upstream.url.clone(), upstream.kind, key)
        };
        config.upstreams.iter().map(one).collect()
    };
    let gpu =
        |key: &str| ("gpu".to_owned(), "http://127.0.0.1:11434".to_owned(), UpstreamKind::Ollama, Some(key.to_owned()));
    let second = ("local-2".to_owned(), "HTTPS://Example.org/v1".to_owned(), UpstreamKind::Auto, None);
    assert_eq!(brief(&config), [gpu("sk-file"), second]);

    let flag =
        |urls: &[&str]| Flags { upstream: urls.iter().map(|url| (*url).to_owned()).collect(), ..Flags::default() };
    let config = Case::new(file).flags(flag(&["http://127.0.0.1:11434"])).load();
    assert_eq!(brief(&config), [gpu("sk-file")], "a flag keeps what the file says of the same address");
    let config = Case::new("").flags(flag(&["http://[::1]:1", "http://localhost:2"])).load();
    let names: Vec<&str> = config.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
    assert_eq!(names, ["local", "local-2"]);

    let config = Case::new(file)
        .var("WINDOWSILL_UPSTREAM_URL", "http://127.0.0.1:11434")
        .var("WINDOWSILL_UPSTREAM_API_KEY", "sk-env")
        .load();
    assert_eq!(brief(&config), [gpu("sk-env")]);
    let text = Case::new(file).var("WINDOWSILL_UPSTREAM_API_KEY", "sk-env").problems();
    assert_eq!(
        text,
        "error: environment: `WINDOWSILL_UPSTREAM_API_KEY` is for a single upstream, and there are 2\n  \
         hint: name one with --upstream or WINDOWSILL_UPSTREAM_URL, or use [[upstream]] in config.toml\n\
         1 problem; nothing was started\n"
    );
}

#[test]
fn a_session_header_is_the_name_of_a_header() {
    let file = |name: &str| format!("[[upstream]]\nurl = 'http://a'\nsession_header = '{name}'\n");
    let config = Case::new(&file("X-Olla-Session-ID")).load();
    assert_eq!(config.upstreams[0].session_header.as_deref(), Some("x-olla-session-id"));
    for wrong in ["", "two words", "Authorization", "content-length"] {
        let text = Case::new(&file(wrong)).problems();
        assert!(text.contains("config.toml:3") && text.contains("must be the name of a header"), "{text}");
    }
}

#[test]
fn the_window_may_be_fitted_and_the_default_reserve_gives_way() {
    let window = |toml: &str| Case::new(toml).load().window;
    assert_eq!(window("[window]\nnum_ctx = 'fit'").num_ctx, NumCtx::Fit);
    for tokens in [1, 64, 1024] {
        let window = window(&format!("[window]\nnum_ctx = {tokens}"));
        assert_eq!((window.num_ctx, window.output_reserved), (NumCtx::Fixed(tokens), 1024));
    }
    let flags = Flags { num_ctx: Some("fit".to_owned()), ..Flags::default() };
    assert_eq!(Case::new("[window]\nnum_ctx = 4096").flags(flags).load().window.num_ctx, NumCtx::Fit);
    let case = Case::new("").var("OLLAMA_MODELS", "/m").var("HOME", "/home/a").var("OTHER", "x");
    let machine = case.load().machine;
    assert_eq!((machine.root, machine.ollama.len()), ("/".into(), 1));
}

#[test]
fn keys_are_never_shown() {
    let case = Case::new("api_key = 'sk-front'\n[[upstream]]\nurl = 'http://127.0.0.1:1'\napi_key = 'sk-back'");
    let text = format!("{:?}", case.load());
    assert!(text.contains("(set)") && !text.contains("sk-front") && !text.contains("sk-back"), "{text}");
    let case = Case::new("").var("WINDOWSILL_API_KEY", "sk-env").var("WINDOWSILL_LISTEN", "0.0.0.0:0");
    assert!(case.load().api_key.is_some_and(|key| key.is("sk-env")), "with a key it may listen anywhere");
}

#[test]
fn a_model_is_served_as_flags_and_environment_say() {
    let flags = Flags {
        model: Some("m.gguf".into()),
        chat_template_file: Some("own.jinja".into()),
        kv_type: Some("q8_0,q4_0".to_owned()),
        serves: true,
        ..Flags::default()
    };
    let config = Case::new("[context]\nsummary_model = 'embedded'").flags(flags).load();
    let [upstream] = &config.upstreams[..] else { panic!("{:?}", config.upstreams) };
    let model = upstream.model.as_ref().expect("a model");
    assert!(model.file.ends_with("m.gguf"), "{model:?}");
    assert!(model.chat_template_file.as_ref().is_some_and(|file| file.ends_with("own.jinja")), "{model:?}");
    assert_eq!(model.kv_type.map(|types| (types.k.name, types.v.name)), Some(("q8_0", "q4_0")));

    let config =
        Case::new("").var("WINDOWSILL_UPSTREAM_MODEL", "m.gguf").var("WINDOWSILL_UPSTREAM_KV_TYPE", "q4_0").load();
    let kinds = config.upstreams[0].model.as_ref().and_then(|model| model.kv_type);
    assert_eq!(kinds.map(|types| types.v.name), Some("q4_0"));
}

#[test]
fn layers_on_gpus_are_as_many_as_fit_all_or_a_number() {
    let of = |layers: &str| {
        let config = Case::new(&format!("[[upstream]]\nmodel = 'm.gguf'\ngpu_layers = {layers}")).load();
        config.upstreams[0].model.as_ref().expect("a model").gpu_layers
    };
    assert_eq!([of("'auto'"), of("'all'"), of("0"), of("7")], [None, Some(u32::MAX), Some(0), Some(7)]);
    for (word, want) in [("12", Some(12)), ("all", Some(u32::MAX)), ("auto", None)] {
        let flags =
            Flags { model: Some("m.gguf".into()), gpu_layers: Some(word.to_owned()), serves: true, ..Flags::default() };
        let config = Case::new("").flags(flags).load();
        assert_eq!(config.upstreams[0].model.as_ref().expect("a model").gpu_layers, want, "{word}");
    }
}

/// `serve` may have been given a model by a flag that other commands do not have.
#[test]
fn who_writes_briefs_is_asked_of_serve_alone() {
    let text = "[context]\nsummary_model = 'embedded'";
    Case::new(text).load();
    let refused = Case::new(text).flags(Flags { serves: true, ..Flags::default() }).problems();
    assert!(refused.contains("windowsill serves no model itself"), "{refused}");
}

#[test]
fn problems_of_flags_and_environment() {
    let flags = Flags {
        listen: Some("8484".to_owned()),
        num_ctx: Some("most".to_owned()),
        upstream: vec!["localhost:11434".to_owned()],
        log: Some("jsn".to_owned()),
        ..Flags::default()
    };
    let case = Case::new("[context]\nkeep_recent = 'x'")
        .flags(flags)
        .var("WINDOWSILL_CONTEXT_CLEARAT", "0.5")
        .var("WINDOWSILL_CONTEXT_CLEAR_TO", "most")
        .var("WINDOWSILL_LISTN", "x")
        .var("WINDOWSILL_LIMITS_FOO", "x")
        .var("WINDOWSILL_BIN", "/bin/windowsill")
        .var("WINDOWSILL_CONTEXT_STRATEGY", "");
    expect_file(&root().join("tests/config/outside.txt"), &case.problems());
}

#[test]
fn sizes_of_results_are_shares_or_tokens() {
    let of = |text: &str| {
        let config = Case::new(&format!("[context]\nevict_over = {text}")).load();
        resolve(&config, "stub").policy.results.evict_over
    };
    assert_eq!(of("0.1"), Size::Share(0.1));
    assert_eq!(of("1"), Size::Share(1.0));
    assert_eq!(of("2"), Size::Tokens(2));
    assert_eq!(of("4_000"), Size::Tokens(4000));
    assert_eq!(of("4000.0"), Size::Tokens(4000));
    let config = Case::new("").var("WINDOWSILL_CONTEXT_EVICT_OVER", "3000").load();
    assert_eq!(resolve(&config, "stub").policy.results.evict_over, Size::Tokens(3000));
}

#[test]
fn every_strategy_can_be_had() {
    for (text, strategy) in
        [("summarize", Strategy::Summarize), ("truncate", Strategy::Truncate), ("off", Strategy::Off)]
    {
        let config = Case::new(&format!("[context]\nstrategy = '{text}'")).load();
        assert_eq!(resolve(&config, "stub").policy.strategy, strategy);
    }
}

#[test]
fn every_key_of_a_table_can_be_set_from_the_environment() {
    // Another value than the default for each key that the base layer sets: the source must say where it came from.
    let values = [
        ("context.evict_over", "0.3"),
        ("context.clear_at", "0.61"),
        ("context.clear_to", "0.41"),
        ("context.summarize_at", "0.86"),
        ("context.summarize_to", "0.46"),
        ("context.keep_recent", "7"),
        ("context.never_clear", "x"),
        ("context.strategy", "off"),
        ("context.summary_max_tokens", "999"),
        ("context.summary_model", "local/x"),
        ("context.background", "false"),
        ("context.recall", "false"),
        ("context.recall_ahead", "off"),
        ("context.tools", "auto"),
        ("context.system", "index"),
        ("context.system_section_max_tokens", "999"),
        ("context.system_max_tokens", "9999"),
        ("window.num_ctx", "9999"),
        ("window.output_reserved", "99"),
        ("window.memory_headroom", "0.2"),
        ("window.told_window", "endless"),
        ("gauge.yellow_at", "0.5"),
        ("gauge.red_at", "0.8"),
        ("limits.max_body_bytes", "9999"),
        ("limits.max_header_bytes", "9999"),
        ("limits.max_connections", "9"),
        ("limits.drain_seconds", "9"),
        ("limits.max_inflight_bytes", "99999"),
        ("limits.max_connections_per_peer", "8"),
        ("limits.body_idle_seconds", "7"),
        ("limits.head_seconds", "3"),
        ("limits.ping_seconds", "5"),
        ("allowed_hosts", "proxy.lan, *.example.org"),
        ("allowed_origins", "vscode-webview://*, https://chat.example.org"),
    ];
    let mut case = Case::new("").var("WINDOWSILL_UPSTREAM_URL", "http://127.0.0.1:1");
    for (key, value) in values {
        case = case.var(&format!("WINDOWSILL_{}", key.replace('.', "_").to_uppercase()), value);
    }
    let config = case.load();
    let resolved = resolve(&config, "stub");
    for (key, value) in values {
        let all = || config.sources.iter().chain(&resolved.sources);
        let wanted = key.strip_prefix("context.").unwrap_or(key);
        let (_, shown, source) = all().find(|(name, ..)| name == wanted).expect(key);
        assert!(source.starts_with("environment WINDOWSILL_"), "{key}: {source}");
        assert_eq!(shown.trim_matches(['[', ']', '"']), value, "{key}");
    }
}

proptest::proptest! {
    // Each case reads 14 profiles, a few ms without optimization.
    #![proptest_config(proptest::test_runner::Config::with_cases(64))]

    /// Whatever a file holds, loading answers: the default file with a piece of it overwritten.
    #[test]
    fn a_mangled_file_never_panics(at in 0usize..4000, length in 0usize..40, junk in "[\\[\\]\"'=#.é€\n\ta-z0-9-]{0,12}") {
        let text: Vec<char> = config::DEFAULT_FILE.replace("# ", "").chars().collect();
        let (at, end) = (at.min(text.len()), (at + length).min(text.len()));
        let mangled: String = text[..at].iter().copied().chain(junk.chars()).chain(text[end.max(at)..].iter().copied()).collect();
        if let Err(problems) = Case::new(&mangled).try_load() {
            assert!(!problems.is_empty());
            assert!(problems.iter().all(|problem| !problem.place.is_empty() && !problem.message.is_empty()));
        }
    }

    /// Whatever environment and profile meet, the thresholds of a policy stay in order.
    #[test]
    fn thresholds_stay_in_order(at in 0.01f64..1.0, to in 0.01f64..1.0, model in 0usize..4) {
        let model = ["smollm2:135m", "qwen3:8b", "phi4", "stub"][model];
        let (at, to) = (format!("{at:.3}"), format!("{to:.3}"));
        let case = Case::new("").var("WINDOWSILL_CONTEXT_SUMMARIZE_AT", &at).var("WINDOWSILL_CONTEXT_CLEAR_TO", &to);
        if let Ok(config) = case.try_load() {
            let policy = resolve(&config, model).policy;
            assert!(policy.clear_to < policy.clear_at, "{policy:?}");
            assert!(policy.summarize_to < policy.summarize_at, "{policy:?}");
            assert_eq!(policy.summarize_at.to_string(), at.parse::<f64>().unwrap().to_string());
        }
    }
}
