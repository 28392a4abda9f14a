//! Real captures of clients, and what a person wrote in them.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::json;

use super::*;
use crate::wire::openai_chat::message;

fn person(text: &str) -> Said<'_> {
    Said::Person(Cow::Borrowed(text))
}

#[test]
fn what_clients_put_around_words_is_gone() {
    for (text, words) in [
        ("Look around in this directory.", "Look around in this directory."),
        (
            "<system-reminder>\nAs you answer, you can use the following context:\n# claudeMd\nUse tabs.\n</system-reminder>\n\nFix the parser.",
            "Fix the parser.",
        ),
        (
            "<task>\nmake a page\n</task>\n\n<environment_details>\n# VSCode Open Tabs\n(none)\n</environment_details>",
            "make a page",
        ),
        (
            "<user_input mode=\"act\">Rename it.</user_input>\n<environment_details>\nx\n</environment_details>",
            "Rename it.",
        ),
        (
            "<attachments>\n<attachment id=\"a\">x</attachment>\n</attachments>\n<userRequest>\nExplain it.\n</userRequest>",
            "Explain it.",
        ),
        (
            "# AGENTS.md instructions for /proj\n\n<INSTRUCTIONS>\nUse tabs.\n</INSTRUCTIONS>\n<environment_context>\n  <cwd>/proj</cwd>\n</environment_context>\nFix it.",
            "Fix it.",
        ),
        (
            "# Context from my IDE setup:\n\n## Open tabs:\n- a.rs\n\n## My request for Codex:\nAdd a test.\n",
            "Add a test.",
        ),
        (
            "Add a file.\n\n# *SEARCH/REPLACE block* Rules:\n\nEvery *SEARCH/REPLACE block* must use this format:\n…",
            "Add a file.",
        ),
        (
            "Please solve this issue: the count is off\n\nYou can execute bash commands and edit files to implement the necessary changes.\n\n## Recommended Workflow\n…",
            "Please solve this issue: the count is off",
        ),
        (
            "### Task:\nRespond to the user query using the provided context.\n\n### Guidelines:\n- x\n\n<context>\n<source id=\"1\">a</source>\n</context>\n\nHow many rows?",
            "How many rows?",
        ),
        (
            "### Task:\nRespond to the user query using the provided context.\n\n### Guidelines:\n- x\n\n<context>a</context>\n\n<user_query>\nHow many rows?\n</user_query>",
            "How many rows?",
        ),
        ("### Task:\nWrite a poem.", "### Task:\nWrite a poem."),
        ("New task:\nCount the rows.", "Count the rows."),
        ("Observation:\nDone.\nNew task:\nCount the rows again.", "Count the rows again."),
        (
            "Go on.\n[SYSTEM] This run is not complete until you call one of these tools: submit_and_exit.\nCall it.",
            "Go on.",
        ),
        ("Read @a.ts\nCalled the Read tool with the following input: {\"filePath\":\"a.ts\"}", "Read @a.ts"),
        (
            "<command-name>/review</command-name>\n<command-message>review</command-message>\n<command-args>the parser</command-args>",
            "the parser",
        ),
        (
            "<uploaded_files>\n/workspace/x\n</uploaded_files>\nI've uploaded a repository.",
            "I've uploaded a repository.",
        ),
    ] {
        assert_eq!(said(text), person(words), "{text}");
    }
}

#[test]
fn what_no_person_wrote_is_told() {
    let kimi = "<system-reminder>\nToday's date is 2026-11-21. The current date is restated in a reminder whenever it changes; …</system-reminder>";
    let qwen = "This is the Qwen Code. We are setting up the context for our chat.\nToday's date is Saturday, November 21, 2026…";
    let gemini =
        "<session_context>\nThis is the Gemini CLI. We are setting up the context for our chat.\n</session_context>";
    let codex = "<environment_context>\n  <cwd>/proj</cwd>\n  <shell>bash</shell>\n  <current_date>2026-11-21</current_date>\n</environment_context>";
    let aider = "I have *added these files to the chat* so you can go ahead and edit them.\n\n*Trust this message as the true contents of these files!*\nAny other messages in the chat may contain outdated versions of the files' contents.\n\nnotes.txt\n```\nnote 1\n```\n";
    for (text, kind) in [
        (kimi, Said::Reminder),
        (qwen, Said::Reminder),
        (gemini, Said::Reminder),
        (codex, Said::Reminder),
        ("<permissions instructions>\nFull access.\n</permissions instructions>", Said::Reminder),
        (
            "[SYSTEM] This run is not complete until you call one of these terminal completion tools: submit_and_exit. …",
            Said::Reminder,
        ),
        ("[Request interrupted by user for tool use]", Said::Reminder),
        ("I am not sharing any files that you can edit yet.", Said::Reminder),
        ("I committed the changes with git hash 12ab34c & commit msg: feat: x", Said::Reminder),
        ("I updated the files.", Said::Reminder),
        (aider, Said::Files),
        (
            "Here are summaries of some files present in my git repository.\nDo not propose changes to these files, treat them as *read-only*.",
            Said::Files,
        ),
        ("# AGENTS.md instructions for /proj\n\n<INSTRUCTIONS>\nUse tabs.\n</INSTRUCTIONS>", Said::Rules),
        ("<user_instructions>\nUse tabs.\n</user_instructions>", Said::Rules),
        ("Observation:\nnote 1: …", Said::Output),
        ("Error:\nno such tool\nNow let's retry: take care not to repeat previous errors!", Said::Output),
        ("<returncode>0</returncode>\n<output>\nnotes.txt\n</output>", Said::Output),
        ("<tool_response>\n{\"a\": 1}\n</tool_response>", Said::Output),
        ("<bash-stdout>a</bash-stdout><bash-stderr></bash-stderr>", Said::Output),
        ("344\n\n(Open file: /x/reproduce.py)\n(Current directory: /x)\nbash-$", Said::Output),
        ("This session is being continued from a previous conversation that ran out of context.", Said::Handover),
        (
            "Another language model started to solve this problem and produced a summary of its thinking process…",
            Said::Handover,
        ),
        (
            "### Task:\nGenerate a concise title.\n### Guidelines:\n- x\n### Chat History:\n<chat_history>\nUSER: hi\n</chat_history>",
            Said::Task,
        ),
    ] {
        assert_eq!(said(text), kind, "{text}");
    }
}

#[test]
fn what_is_not_known_is_a_persons() {
    for text in [
        "Ok.",
        "What does <system-reminder> mean?",
        "Why does `<system-reminder>x</system-reminder>` stand there?",
        "<instructions>Write a poem.</instructions>",
        "<context>Rain.</context> What now?",
        "<div>hi</div>\nMake it red. a < b > c",
        "<file_content path=\"a.rs\">\nfn a() {}\n</file_content>",
        "Observation of the sky",
        "héé < ü <日本>x</日本>",
    ] {
        assert_eq!(said(text), person(text), "{text}");
    }
    assert_eq!(said("  \n"), person(""));
}

#[test]
fn only_users_speak_and_a_picture_is_a_persons() {
    let read = |value: serde_json::Value| message(Bytes::from(value.to_string())).unwrap();
    let user = read(json!({"role": "user", "content": [
        {"type": "text", "text": "<system-reminder>x</system-reminder>"}, {"type": "text", "text": "Go on."}]}));
    assert_eq!(words(&user).as_deref(), Some("Go on."));
    assert_eq!(words(&read(json!({"role": "system", "content": "Go on."}))), None);
    assert_eq!(words(&read(json!({"role": "user", "content": ""}))), None);
    let picture = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
    assert_eq!(words(&read(json!({"role": "user", "content": [picture]}))).as_deref(), Some(""));
}

#[test]
fn hostile_texts_take_little_time() {
    let many = "<a><b><system-reminder>".repeat(20_000);
    assert!(matches!(said(&many), Said::Person(_)));
    let closed = "<system-reminder>x</system-reminder>".repeat(20_000);
    assert!(matches!(said(&closed), Said::Person(_)));
    let different: String = (0..3000).map(|i| format!("<t{i}>")).collect();
    assert!(matches!(said(&different), Said::Person(_)));
}
