//! Every template that is at hand, over recorded sessions: our engine's prompts against those of llama.cpp's, which is built in.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a panic is how they fail")]

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use super::tests::{data, requests};
use crate::engine::chat_template;
use crate::template::{Caps, Options, Reference, Template, TemplateError};

/// llama.cpp's reading of a template, which agrees with ours on none of the trials and so gets every request after them.
#[derive(Debug)]
struct Always(Arc<dyn Reference>);

impl Reference for Always {
    fn caps(&self) -> Caps {
        self.0.caps()
    }

    fn render(&self, variables: &Value, now: i64) -> Result<String, TemplateError> {
        let rendered = self.0.render(variables, now);
        let trial = variables["eos_token"] == "</s>";
        if trial { Ok(rendered.map_or_else(|_| String::new(), |text| text + "!")) } else { rendered }
    }
}

/// A template that llama.cpp alone renders.
fn theirs(source: &str) -> Template {
    let read = |source: &str| Some(Arc::new(Always(chat_template::read(source)?)) as Arc<dyn Reference>);
    Template::checked(source, &read).unwrap()
}

#[test]
fn sessions_render_as_llama_cpp_renders_them() {
    let Some(data) = data() else { return };
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(data.join("templates")).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "jinja"));
    files.sort();
    let requests = requests(16_000, 12);
    let options =
        Options { bos_token: "<bos>".into(), eos_token: "<eos>".into(), now: 1_700_000_000, ..Options::default() };
    let (mut equal, mut refused, mut off) = (0, 0, Vec::new());
    for (at, file) in files.iter().enumerate() {
        let source = std::fs::read_to_string(file).unwrap();
        let (ours, theirs) = (Template::checked(&source, &chat_template::read).unwrap(), theirs(&source));
        if !theirs.is_rendered_elsewhere() {
            eprintln!("{}: not compared", file.display());
            continue;
        }
        // Every second session with each, and each with every second template: all would take half a minute.
        for (name, request) in requests.iter().skip(at % 2).step_by(2) {
            let (a, b) = (ours.render_request(request, &options), theirs.render_request(request, &options));
            let texts = [&a, &b].map(|r| r.as_ref().map_or_else(|e| format!("({e})"), Clone::clone));
            if a.as_ref().ok() != b.as_ref().ok() {
                off.push(format!("{}, {name}: {}", file.display(), difference(&texts)));
            }
            if a.is_ok() { equal += 1 } else { refused += 1 }
        }
    }
    eprintln!("{} templates: {equal} prompts equal, {refused} refused by both", files.len());
    assert!(
        off.is_empty(),
        "{} differ, such as\n{}",
        off.len(),
        off.iter().step_by(1 + off.len() / 12).cloned().collect::<Vec<_>>().join("\n")
    );
    assert!(equal > 10 * files.len(), "{equal}");
}

/// Two prompts from shortly before the place where they part.
fn difference([ours, theirs]: &[String; 2]) -> String {
    let same = ours.bytes().zip(theirs.bytes()).take_while(|(a, b)| a == b).count();
    let from = (0..=same.saturating_sub(40)).rev().find(|at| ours.is_char_boundary(*at)).unwrap_or(0);
    let [ours, theirs] = [ours, theirs].map(|t| t.get(from..).unwrap_or(t).chars().take(120).collect::<String>());
    format!("ours {ours:?}, llama.cpp's {theirs:?}")
}

/// Those that are slower for it, and why: with tools whose schemas allow of several types.
#[test]
fn few_templates_need_the_other_engine() {
    let Some(data) = data() else { return };
    let mut found: Vec<String> = std::fs::read_dir(data.join("templates"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|f| f.extension().is_some_and(|e| e == "jinja"))
        .filter(|f| {
            let source = std::fs::read_to_string(f).unwrap();
            Template::checked(&source, &chat_template::read).unwrap().is_rendered_elsewhere()
        })
        .map(|f| f.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    found.sort();
    let known = [
        "ByteDance-Seed-OSS",
        "CohereForAI-c4ai-command-r-plus-tool_use",
        "GigaChat3-10B-A1.8B",
        "GigaChat3.1-10B-A1.8B",
        "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    ];
    assert_eq!(found, known);
}
