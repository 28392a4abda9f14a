//! Whose rules a conversation gets: the program that asks, and the project that it works on.

use std::sync::LazyLock;

use http::{HeaderMap, header};
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::headers;
use crate::conversation::{Conversation, Digest, Role};
use crate::plain;
use crate::store::Rule;

/// Characters of a client's name, and of a project's.
const NAME: usize = 200;

/// How a system prompt names the working folder.
static FOLDER: LazyLock<Regex> = LazyLock::new(|| {
    let name = r"(?:primary |current )?(?:working (?:directory|folder)|cwd)";
    Regex::new(&format!(r"(?im)(?:<cwd>\s*([^<\n]+?)\s*</cwd>|^[\s*-]*{name}\s*(?:is)?\s*[:=]\s*`?([^`\n]+?)`?\s*$)"))
        .expect("it is a constant")
});

/// The same within what a client says of its environment in front of a person's first words.
static ENVIRONMENT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"<cwd>\s*([^<\n]+?)\s*</cwd>").expect("it is a constant"));

/// Whose rules a conversation gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::proxy) struct Scope {
    /// The program that asks, and a mark of the key that it sends.
    pub(in crate::proxy) client: String,
    /// What it works on.
    pub(in crate::proxy) project: String,
}

impl Scope {
    /// The scope of a request; `None` where nothing tells the project.
    pub(in crate::proxy) fn of(from_client: &HeaderMap, conversation: &Conversation) -> Option<Scope> {
        let project = named(from_client).or_else(|| folder(conversation)).or_else(|| prompt(conversation))?;
        Some(Scope { client: client(from_client), project: plain::line(&project).chars().take(NAME).collect() })
    }

    /// As it is kept with the conversation.
    pub(in crate::proxy) fn json(&self) -> Value {
        json!({"client": self.client, "project": self.project})
    }

    /// As it was kept.
    pub(in crate::proxy) fn from_json(value: &Value) -> Option<Scope> {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        Some(Scope { client: text("client")?, project: text("project")? })
    }

    /// Whether a rule is of it.
    pub(in crate::proxy) fn has(&self, rule: &Rule) -> bool {
        rule.client == self.client && rule.project == self.project
    }
}

fn named(from_client: &HeaderMap) -> Option<String> {
    headers::text(from_client, &headers::PROJECT).map(|name| format!("name:{name}"))
}

fn folder(conversation: &Conversation) -> Option<String> {
    let system = conversation.system.iter().find_map(|message| FOLDER.captures(&message.text));
    let first = || conversation.body.iter().find(|m| m.role == Role::User);
    let found = system.or_else(|| ENVIRONMENT.captures(&first()?.text))?;
    let path = found.get(1).or_else(|| found.get(2))?.as_str().trim_end_matches(['/', '\\']);
    (!path.is_empty()).then(|| format!("folder:{path}"))
}

fn prompt(conversation: &Conversation) -> Option<String> {
    let texts: Vec<&str> = conversation.system.iter().map(|m| m.text.trim()).filter(|text| !text.is_empty()).collect();
    (!texts.is_empty()).then(|| format!("prompt:{}", &Digest::of(texts.join("\n").as_bytes()).hex()[..16]))
}

/// The program's name without its version.
pub(in crate::proxy) fn program(from_client: &HeaderMap) -> String {
    let agent = headers::text(from_client, &header::USER_AGENT).unwrap_or_default();
    let product = agent.split(['/', ' ']).next().unwrap_or("").to_owned();
    let product = plain::line(&product).chars().take(NAME / 4).collect::<String>();
    if product.is_empty() { "unnamed".to_owned() } else { product }
}

/// The program's name, and eight digits of a digest of its key: two people with keys of their own are two clients.
fn client(from_client: &HeaderMap) -> String {
    let name = program(from_client);
    let key = [header::AUTHORIZATION, header::HeaderName::from_static("x-api-key")];
    match key.iter().find_map(|key| headers::text(from_client, key)) {
        Some(key) => format!("{name}#{}", &Digest::of(key.as_bytes()).hex()[..8]),
        None => name,
    }
}

/// What set the chain of a history apart from one that begins alike, but with the rules of another client or project, in records of
/// before it was kept whose a conversation is.
pub(in crate::proxy) fn old_mark(from_client: &HeaderMap, conversation: &Conversation) -> String {
    let ours = Scope::of(from_client, conversation);
    ours.map_or_else(|| client(from_client), |ours| format!("{}\n{}", ours.client, ours.project))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::openai_chat;

    fn scope(sent: &[(&str, &str)], system: &str, user: &str) -> Option<Scope> {
        let mut headers = HeaderMap::new();
        for (name, value) in sent {
            headers.insert(header::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": user}]);
        let body = json!({"model": "m", "messages": messages}).to_string();
        Scope::of(&headers, &openai_chat::parse(&body.into()).unwrap().conversation)
    }

    #[test]
    fn a_project_is_told_by_header_folder_or_system_prompt_in_that_order() {
        let project = |sent: &[(&str, &str)], system: &str, user: &str| scope(sent, system, user).map(|s| s.project);
        let folder = Some("folder:/home/a/shop".to_owned());
        for (system, user) in [
            ("Be brief.\nWorking directory: /home/a/shop/\nIs a git repo: yes", "hi"),
            ("# Environment\n - Primary working directory: /home/a/shop\n", "hi"),
            ("You are X.\ncwd = `/home/a/shop`", "hi"),
            ("<env>\n<cwd>/home/a/shop</cwd></env>", "hi"),
            ("", "<environment_context>\n  <cwd>/home/a/shop</cwd>\n</environment_context>"),
        ] {
            assert_eq!(project(&[], system, user), folder, "{system}");
        }
        assert_eq!(project(&[("x-windowsill-project", "shop")], "cwd: /x", "hi"), Some("name:shop".into()));
        let prompt = project(&[], "You are a cook.", "hi").unwrap();
        assert!(prompt.starts_with("prompt:") && prompt == project(&[], "You are a cook.", "bye").unwrap());
        assert_ne!(Some(prompt), project(&[], "You are a baker.", "hi"));
        assert_eq!(project(&[], "", "Working directory: /home/a/shop"), None, "a person's words name no project");
    }

    #[test]
    fn a_client_is_its_program_and_its_key() {
        let client = |sent: &[(&str, &str)]| scope(sent, "s", "u").unwrap().client;
        assert_eq!(client(&[("user-agent", "claude-cli/1.0.3 (x)")]), client(&[("user-agent", "claude-cli/2.1")]));
        assert_eq!(client(&[("user-agent", "claude-cli/1.0")]), "claude-cli");
        assert_eq!(client(&[]), "unnamed");
        let (a, b) = (client(&[("authorization", "Bearer a")]), client(&[("authorization", "Bearer b")]));
        assert!(a != b && a.starts_with("unnamed#") && !a.contains("Bearer"), "{a} {b}");
        let one = scope(&[("user-agent", "a/1")], "s", "u").unwrap();
        assert_eq!(Scope::from_json(&one.json()), Some(one));
        assert_eq!(Scope::from_json(&Value::Null), None);
    }
}
