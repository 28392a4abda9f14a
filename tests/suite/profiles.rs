//! Profiles: which one a model gets, what the built-in ones say, and what a bad one is answered.

use std::collections::BTreeSet;
use std::path::Path;

use windowsill::config::{self, Config, ModelHints, SizeClass, print};
use windowsill::plan::{KeepRecent, Policy, TemplateFacts};

use crate::config::{Case, expect_file, files, root};
use crate::planning::sessions::shared;

fn config() -> Config {
    Case::new("").load()
}

/// What a profile of a user's own, or one that a request names, does not say, the family's goes on to say.
#[test]
fn a_chosen_profile_lies_over_the_familys() {
    let case = Case::new("profile_dir = 'p'")
        .file("p/careful.toml", "[match]\nnames = []\n[context]\nkeep_recent = 3\n")
        .file(
            "p/ours.toml",
            "[match]\nnames = ['mistral-nemo*']\n[context]\nkeep_recent = 5\n[template]\nlater_system = true\n",
        );
    let config = case.load();
    let of = |model: &str, header: Option<&str>| config.policy(model, &ModelHints::default(), header);
    let asked = of("mistral:7b", Some("careful"));
    assert_eq!((asked.profile.as_str(), asked.policy.keep_recent), ("careful", KeepRecent::Messages(3)));
    let facts = &asked.policy.template;
    assert!(facts.strict_alternation && !facts.later_system && facts.tool_call_id_length == Some(9), "{facts:?}");
    assert!(asked.because.starts_with("the request asked for profile `careful`, over profile `mistral`; "));
    let named = of("mistral-nemo:12b", None);
    assert_eq!((named.profile.as_str(), named.policy.keep_recent), ("ours", KeepRecent::Messages(5)));
    let facts = &named.policy.template;
    assert!(facts.strict_alternation && facts.later_system && facts.tool_call_id_length == Some(9), "{facts:?}");
    let both = of("mistral-nemo:12b", Some("careful"));
    assert_eq!(both.policy.keep_recent, KeepRecent::Messages(3));
    assert!(both.policy.template.later_system && both.policy.template.strict_alternation);
    // By its template, where the name says nothing.
    let hints = ModelHints { parameters: None, template: Some("[INST] must alternate") };
    let alias = config.policy("alias", &hints, Some("careful"));
    assert_eq!(alias.policy.template.tool_call_id_length, Some(9));
}

/// Model, profile, size class.
const MODELS: &[(&str, &str, Option<SizeClass>)] = {
    use SizeClass::{Large, Medium, Small};
    &[
        // Ollama tags
        ("llama3", "llama3", None),
        ("llama3:latest", "llama3", None),
        ("llama3.1:8b", "llama3", Some(Medium)),
        ("llama3.2:1b", "llama3", Some(Small)),
        ("llama3.2:3b-instruct-q4_K_M", "llama3", Some(Medium)),
        ("llama3.3:70b", "llama3", Some(Large)),
        ("qwen3:8b", "qwen3", Some(Medium)),
        ("qwen3:0.6b", "qwen3", Some(Small)),
        ("qwen3:30b-a3b", "qwen3", Some(Large)),
        ("qwen3-coder:30b", "qwen3", Some(Large)),
        ("qwq:32b", "qwen3", Some(Large)),
        ("qwen3.5:4b", "qwen3.5", Some(Medium)),
        ("qwen2.5-coder:7b", "qwen2.5-coder", Some(Medium)),
        ("qwen2.5-coder:1.5b-base", "qwen2.5-coder", Some(Small)),
        ("qwen2.5:0.5b", "qwen2.5-coder", Some(Small)),
        ("gemma3:4b", "gemma3", Some(Medium)),
        ("gemma3:270m", "gemma3", Some(Small)),
        ("gemma3n:e4b", "gemma3", Some(Medium)),
        ("gemma3n:e2b", "gemma3", Some(Small)),
        ("gemma2:27b", "gemma3", Some(Large)),
        ("gpt-oss:20b", "gpt-oss", Some(Large)),
        ("gpt-oss:120b", "gpt-oss", Some(Large)),
        ("mistral", "mistral", None),
        ("mistral:7b", "mistral", Some(Medium)),
        ("mistral-nemo:12b", "mistral", Some(Medium)),
        ("mixtral:8x7b", "mistral", Some(Large)),
        ("codestral:22b", "mistral", Some(Large)),
        ("devstral:24b", "devstral", Some(Large)),
        ("deepseek-r1:7b", "deepseek-r1", Some(Medium)),
        ("deepseek-r1:1.5b", "deepseek-r1", Some(Small)),
        ("phi4", "phi4", Some(Medium)),
        ("phi4-mini:3.8b", "phi4", Some(Medium)),
        ("granite3.3:2b", "granite", Some(Small)),
        ("granite4:tiny-h", "granite", None),
        ("smollm2:135m", "smollm2", Some(Small)),
        ("smollm2", "smollm2", Some(Small)),
        ("smollm:1.7b", "smollm2", Some(Small)),
        // repositories
        ("unsloth/Qwen3-8B-GGUF", "qwen3", Some(Medium)),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3", Some(Large)),
        ("hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M", "llama3", Some(Medium)),
        ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "llama3", Some(Medium)),
        ("HuggingFaceTB/SmolLM2-1.7B-Instruct", "smollm2", Some(Small)),
        ("HuggingFaceTB/SmolLM3-3B", "smollm3", Some(Medium)),
        ("mistralai/Devstral-Small-2507", "devstral", None),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral", Some(Large)),
        ("bartowski/mistralai_Devstral-Small-2507-GGUF", "devstral", None),
        ("bartowski/Qwen_Qwen3-8B-GGUF", "qwen3", Some(Medium)),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "deepseek-r1", Some(Large)),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "deepseek-r1", Some(Medium)),
        ("ibm-granite/granite-3.3-8b-instruct", "granite", Some(Medium)),
        ("microsoft/phi-4", "phi4", Some(Medium)),
        ("openai/gpt-oss-20b", "gpt-oss", Some(Large)),
        // files
        ("/models/qwen3-8b-q4_k_m.gguf", "qwen3", Some(Medium)),
        ("/models/Qwen2.5-Coder-7B/model.gguf", "qwen2.5-coder", Some(Medium)),
        ("C:\\models\\gemma-3-12b-it-Q4_K_M.gguf", "gemma3", Some(Medium)),
        ("/cache/unsloth_Qwen3-8B-GGUF_Qwen3-8B-Q4_K_M.gguf", "qwen3", Some(Medium)),
        ("SmolLM2-135M-Instruct-Q8_0.gguf", "smollm2", Some(Small)),
        ("/models/gpt-oss-20b-mxfp4.gguf", "gpt-oss", Some(Large)),
        // names that no profile knows
        ("stub", "default", None),
        ("gpt-4o", "default", None),
        ("gpt-4o-mini", "default", None),
        ("default", "default", None),
        ("", "default", None),
        ("my-coder", "default", None),
        ("gemma4:31b", "default", Some(Large)),
        ("mistralai/SomethingElse", "default", None),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "default", Some(Medium)),
        ("glm-4.6", "default", None),
        ("claude-sonnet-4", "default", None),
        ("tinyllama:1.1b", "default", Some(Small)),
    ]
};

#[test]
fn which_profile_a_model_gets() {
    let config = config();
    for (model, profile, size) in MODELS {
        let resolved = config.policy(model, &ModelHints::default(), None);
        assert_eq!((resolved.profile.as_str(), resolved.size), (*profile, *size), "{model}: {}", resolved.because);
    }
    assert!(MODELS.len() >= 60, "{}", MODELS.len());
    let named: BTreeSet<&str> = MODELS.iter().map(|(_, profile, _)| *profile).collect();
    let built_in: BTreeSet<&str> = config.profiles.iter().map(|profile| profile.name.as_str()).collect();
    assert_eq!(named, built_in, "every built-in profile is reached, and no other");
}

#[test]
fn a_model_nobody_knows_gets_exactly_the_defaults() {
    let config = config();
    for (model, profile, size) in MODELS {
        let policy = config.policy(model, &ModelHints::default(), None).policy;
        if *profile == "default" && size.is_none_or(|size| size == SizeClass::Large) {
            assert_eq!(policy, Policy::default(), "{model}");
        }
    }
}

#[test]
fn every_built_in_profile_holds_together() {
    let config = config();
    for profile in &config.profiles {
        for parameters in [None, Some(135_000_000), Some(8_000_000_000), Some(70_000_000_000)] {
            let hints = ModelHints { parameters, template: None };
            let resolved = config.policy("x", &hints, Some(&profile.name));
            let policy = &resolved.policy;
            let order = [0.0, policy.clear_to, policy.clear_at, policy.summarize_at, 1.0];
            assert!(order.is_sorted(), "{} {parameters:?}: {policy:?}", profile.name);
            assert!(policy.clear_to < policy.clear_at && policy.summarize_to < policy.summarize_at);
            assert!(resolved.warning.is_none());
        }
    }
    let on_disk: Vec<_> = files(&root().join("profiles"), "toml");
    assert_eq!(config.profiles.len(), on_disk.len(), "a file in profiles/ is not built in");
    assert_eq!(on_disk.len(), 14);
    for path in &on_disk {
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        assert!(config.profiles.iter().any(|profile| Some(profile.name.as_str()) == stem), "{stem:?} is not built in");
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.starts_with("# "), "{} says nothing of what it is for", path.display());
    }
}

#[test]
fn small_models_are_cut_earlier_than_large_ones() {
    let config = config();
    let at = |model: &str| config.policy(model, &ModelHints::default(), None).policy.summarize_at;
    for family in ["anybodys", "llama3", "qwen3", "qwen2.5-coder", "gemma3", "mistral", "granite", "deepseek-r1"] {
        let [small, medium, large] = ["1b", "8b", "70b"].map(|size| at(&format!("{family}:{size}")));
        assert!(small <= 0.5 && medium == 0.65 && large == 0.85, "{family}: {small} {medium} {large}");
        assert_eq!(at(&format!("{family}:latest")), 0.85, "of unknown size, the config decides");
    }
    let smollm = config.policy("smollm2:135m", &ModelHints::default(), None);
    assert_eq!(
        smollm.because,
        "`smollm2:135m` fits `smollm2*` of profile `smollm2`; small (135M parameters, from its name)"
    );
}

#[test]
fn what_the_server_reports_wins_over_the_name() {
    let hints = ModelHints { parameters: Some(600_000_000), template: None };
    let resolved = config().policy("qwen3:8b", &hints, None);
    assert_eq!(resolved.size, Some(SizeClass::Small));
    assert_eq!(
        resolved.because,
        "`qwen3:8b` fits `qwen3*` of profile `qwen3`; small (600M parameters, from the server)"
    );
}

#[test]
fn template_facts_of_families() {
    let usual = TemplateFacts::default();
    let strict = |later_system| TemplateFacts { later_system, ..usual.clone() };
    let cases = [
        ("qwen3:8b", usual.clone()),
        ("llama3.1:8b", usual.clone()),
        ("stub", usual.clone()),
        ("qwen3.5:4b", strict(false)),
        ("gpt-oss:20b", strict(false)),
        ("deepseek-r1:8b", strict(false)),
        ("smollm3", strict(false)),
        ("phi4", TemplateFacts { tool_role: false, ..usual.clone() }),
        ("devstral", TemplateFacts { tool_call_id_length: Some(9), ..usual.clone() }),
        (
            "mistral:7b",
            TemplateFacts {
                strict_alternation: true,
                later_system: false,
                tool_role: true,
                tool_call_id_length: Some(9),
            },
        ),
        (
            "gemma3:4b",
            TemplateFacts {
                strict_alternation: true,
                later_system: false,
                tool_role: false,
                tool_call_id_length: None,
            },
        ),
    ];
    let config = config();
    for (model, facts) in cases {
        assert_eq!(config.policy(model, &ModelHints::default(), None).policy.template, facts, "{model}");
    }
}

#[test]
fn an_alias_is_known_by_its_template() {
    let config = config();
    let of = |template: &str| {
        let resolved = config.policy("my-alias", &ModelHints { parameters: None, template: Some(template) }, None);
        (resolved.profile, resolved.because)
    };
    let mistral = "{{ '[INST]' }}{{ raise_exception('roles must alternate user/assistant') }}";
    let because = "no profile names `my-alias`, but its chat template is that of profile `mistral`; size unknown";
    assert_eq!(of(mistral), ("mistral".to_owned(), because.to_owned()));
    assert_eq!(of("<|im_start|>").0, "default");
    assert_eq!(of("").0, "default");
    let named = config.policy("qwen3:8b", &ModelHints { parameters: None, template: Some(mistral) }, None);
    assert_eq!(named.profile, "qwen3", "a name is stronger than a template");
}

/// The templates of real models reach the profile of their family.
#[test]
fn real_templates_reach_their_family() {
    let folder = shared("templates");
    let expected = [
        ("Mistral-Small-3.2-24B-Instruct-2506", "mistral"),
        ("mistralai-Mistral-Nemo-Instruct-2407", "mistral"),
        ("mistralai-Ministral-3-14B-Reasoning-2512", "mistral"),
        ("unsloth-mistral-Devstral-Small-2507", "default"),
        ("Qwen3.5-4B", "qwen3.5"),
        ("google-gemma-2-2b-it", "gemma3"),
        ("google-gemma-4-31B-it", "default"),
        ("openai-gpt-oss-120b", "gpt-oss"),
        ("meta-llama-Llama-3.2-3B-Instruct", "llama3"),
        ("ibm-granite-granite-3.3-2B-Instruct", "granite"),
        ("Qwen-Qwen2.5-7B-Instruct", "default"),
        ("Kimi-K2-Instruct", "default"),
    ];
    let config = config();
    for (file, profile) in expected {
        let template = std::fs::read_to_string(folder.join(format!("{file}.jinja"))).unwrap();
        let hints = ModelHints { parameters: None, template: Some(&template) };
        assert_eq!(config.policy("alias", &hints, None).profile, profile, "{file}");
    }
}

#[test]
fn a_profile_dir_adds_and_overrides() {
    let case = Case::new("profile_dir = 'mine'")
        .file("mine/qwen3.toml", "[match]\nnames = ['qwen3*']\n[context]\nkeep_recent = 2\n")
        .file("mine/work.toml", "[match]\nnames = ['qwen3:8b-work', 'corp/*']\n[size.small]\nclear_at = 0.5\n")
        .file("mine/notes.txt", "not a profile");
    let config = case.load();
    assert_eq!(config.profiles.len(), 15);
    let of = |model: &str| config.policy(model, &ModelHints::default(), None);
    assert_eq!(of("qwen3:8b").policy.keep_recent, KeepRecent::Messages(2));
    let mistral = "[match]\nnames = ['mistral*']\n";
    let replaced = Case::new("profile_dir = 'm'").file("m/mistral.toml", mistral).load();
    let facts = replaced.policy("mistral:7b", &ModelHints::default(), None).policy.template;
    assert_eq!(facts, TemplateFacts::default(), "the whole built-in profile is replaced");
    assert_eq!(of("QWEN3:8B-Work").profile, "work", "the longest glob wins, whatever the case");
    assert_eq!(of("corp/anything-1b").profile, "work");
    assert_eq!(of("corp/anything-1b").policy.clear_at, 0.5);
    let list = print::profile_list(&config);
    assert!(list.contains("mine/work.toml") && list.contains("built in"), "{list}");
}

#[test]
fn a_profile_without_names_is_for_requests_that_ask_for_it() {
    let config = Case::new("profile_dir = 'p'").file("p/careful.toml", "[match]\nnames = []\n").load();
    assert_eq!(config.policy("careful", &ModelHints::default(), None).profile, "default");
    assert_eq!(config.policy("stub", &ModelHints::default(), Some("careful")).profile, "careful");
}

#[test]
fn of_equal_globs_the_first_name_wins() {
    let profile = "[match]\nnames = ['same*']\n";
    let config = Case::new("profile_dir = 'p'").file("p/b.toml", profile).file("p/a.toml", profile).load();
    assert_eq!(config.policy("same", &ModelHints::default(), None).profile, "a");
}

#[test]
fn every_bad_profile_is_answered_in_full() {
    let folder = root().join("tests/config/bad_profiles");
    let inputs = files(&folder, "toml");
    for input in &inputs {
        let check = print::profile_check(std::slice::from_ref(input), None);
        assert!(!check.problems.is_empty(), "{} is accepted", input.display());
        expect_file(input, &check.text().replace(&folder.display().to_string(), "profiles"));
    }
    assert_eq!(inputs.len(), 4);
    assert_eq!(files(&folder, "txt").len(), inputs.len());
}

#[test]
fn the_built_in_profiles_check_clean() {
    let check = print::profile_check(&[], None);
    assert_eq!(check.text(), "14 profiles checked; no problem found\n");
    assert_eq!(check.json(), serde_json::json!({ "checked": 14, "problems": [] }));
    let missing = print::profile_check(&["no/such.toml".into()], None);
    assert_eq!(missing.problems.len(), 1);
    assert_eq!(missing.json()["problems"][0]["place"], "no/such.toml");
}

#[test]
fn a_bad_file_in_the_profile_dir_stops_the_start() {
    let problems =
        Case::new("profile_dir = 'p'").file("p/x.toml", "[match]\nnames = ['x']\n[context]\nfoo = 1").try_load();
    let text = config::report(&problems.unwrap_err(), "nothing was started");
    assert!(text.contains("p/x.toml:4:1: unknown key `foo` in [context]"), "{text}");
}

#[test]
fn what_profile_show_prints() {
    let config = Case::new("[context]\nkeep_recent = 8\n").load();
    let show = |name: &str| print::profile_show(&config, name, &ModelHints::default());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config");
    expect_file(&folder.join("show_model.txt"), &show("qwen3:8b").text());
    expect_file(&folder.join("show_profile.txt"), &show("mistral").text());
    expect_file(&folder.join("list.txt"), &print::profile_list(&config));
    let json = show("qwen3:8b").json();
    assert_eq!(json["profile"], "qwen3");
    assert_eq!(json["size"], "medium");
    let setting =
        |key: &str| json["settings"].as_array().unwrap().iter().find(|row| row["key"] == key).cloned().unwrap();
    assert_eq!(setting("keep_recent")["source"], "config.toml:2");
    assert_eq!(setting("clear_at")["source"], "default [size.medium]");
    assert_eq!(show("mistral").json()["by_size"]["small"]["clear_at"], "0.35");
    assert_eq!(print::profile_list_json(&config).as_array().map(Vec::len), Some(14));
}
