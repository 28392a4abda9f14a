//! Rules: what a person wants in every new conversation of a project. A new conversation of the same client and project begins with
//! them as pins, so they hold through every fold and can be taken back there. They are listed, changed and removed, and never go
//! from one client to another.

use std::sync::{Arc, LazyLock};

use http::{HeaderMap, header};
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::compact::unchanged;
use crate::conversation::edit::Edit;
use crate::conversation::{Conversation, Digest, Role, Tokens};
use crate::plan::{self, Facts};
use crate::proxy::standing::{ALL_PINS, LARGEST_PIN, Pinned, Standing, What};
use crate::proxy::turn::class::Class;
use crate::proxy::turn::draft::Draft;
use crate::proxy::turn::history::History;
use crate::proxy::turn::save::now_ms;
use crate::proxy::{App, Error, turn::headers};
use crate::store::{Batch, Event, Rule, RuleChange};
use crate::{pinned, plain};

/// Bytes of one rule.
const LONGEST: usize = 2_000;

/// Rules of one project.
const MOST: usize = 50;

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
    client: String,
    /// What it works on.
    project: String,
}

impl Scope {
    /// The scope of a request; `None` where nothing tells the project.
    fn of(from_client: &HeaderMap, conversation: &Conversation) -> Option<Scope> {
        let project = named(from_client).or_else(|| folder(conversation)).or_else(|| prompt(conversation))?;
        Some(Scope { client: client(from_client), project: plain::line(&project).chars().take(NAME).collect() })
    }

    /// As it is kept with the conversation.
    pub(in crate::proxy) fn json(&self) -> Value {
        json!({"client": self.client, "project": self.project})
    }

    fn from_json(value: &Value) -> Option<Scope> {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        Some(Scope { client: text("client")?, project: text("project")? })
    }

    fn has(&self, rule: &Rule) -> bool {
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

/// The rules that a new conversation begins with.
#[derive(Debug, Clone)]
pub(in crate::proxy) struct Ruled {
    ids: Vec<i64>,
    tokens: Tokens,
    left_out: usize,
}

impl Ruled {
    /// What is told of it: numbers, no text.
    pub(in crate::proxy) fn event(&self, conversation: &str, now_ms: i64) -> Event {
        let data = json!({"rules": self.ids, "tokens": self.tokens, "left_out": self.left_out});
        Event { now_ms, conversation: Some(conversation.to_owned()), kind: "rules_applied".into(), data }
    }

    /// In words without text of the rules.
    pub(in crate::proxy) fn because(&self) -> String {
        format!("rules: {} of this project stand in a new conversation ({} tokens)", self.ids.len(), self.tokens)
    }
}

impl App {
    /// Whose rules a request's conversation gets, where rules are on.
    pub(in crate::proxy) fn scope(&self, draft: &Draft<'_>, from_client: &HeaderMap) -> Option<Scope> {
        let conversation = &draft.request.conversation;
        let on = draft.situation.policy.rules && Class::of(conversation) != Class::Helper;
        if on { Scope::of(from_client, conversation) } else { None }
    }

    /// Puts the rules of a project into a new conversation: as pins, which stand at the end of the first message of a person.
    /// What cannot be read is no reason to refuse the request.
    pub(in crate::proxy) fn put_rules(
        &self,
        draft: &mut Draft<'_>,
        facts: &Facts,
        scope: &Scope,
        standing: &mut Arc<Standing>,
    ) -> Option<Ruled> {
        if !self.is_new(&draft.situation.history) || **standing != Standing::default() {
            return None;
        }
        let rules = self.rules_of(draft, scope);
        let (kept, left_out) = self.with_room(draft, &rules, facts.window);
        if left_out > 0 {
            draft.warnings.push(format!("{left_out} rules of this project found no room in the window"));
        }
        if kept.is_empty() {
            return None;
        }
        let pin = |(at, rule): (usize, &&Rule)| Pinned {
            id: at as u64 + 1,
            what: What::Text(rule.text.as_str().into()),
            created_ms: now_ms(),
            rule: Some(rule.id),
        };
        let pins: Vec<Pinned> = kept.iter().enumerate().map(pin).collect();
        let ruled_for = Some(scope.clone());
        *standing = Arc::new(Standing { numbered: pins.len() as u64, pins, ruled_for, ..Standing::default() });
        let body = &draft.request.conversation.body;
        draft.wanted = self.held(&draft.situation.key, standing, &draft.situation.policy.pins, body, facts.window);
        let block = pinned::block(&draft.wanted.texts, &|_| true);
        if !block.is_empty() {
            let at = plan::anchor(&draft.request.conversation, facts, &draft.policy);
            let (keep, unread) = (Vec::new(), Vec::new());
            draft
                .old
                .edits
                .insert(0, Edit::Fold { from: at, to: at, keep, brief: Arc::from(block), unread, read: Some(at) });
        }
        Some(Ruled { ids: kept.iter().map(|rule| rule.id).collect(), tokens: draft.wanted.tokens, left_out })
    }

    /// The rules of a scope, by number.
    fn rules_of(&self, draft: &mut Draft<'_>, scope: &Scope) -> Vec<Rule> {
        let all = match self.store.rules() {
            Ok((all, _)) => all,
            Err(e) => {
                tracing::warn!(conversation = draft.situation.id(), error = %e, "the rules cannot be read");
                draft.warnings.push("the rules of this project could not be read".into());
                Vec::new()
            }
        };
        all.into_iter().filter(|rule| scope.has(rule)).collect()
    }

    /// Whether a history begins a conversation that the record does not have.
    fn is_new(&self, history: &History) -> bool {
        let known = || matches!(self.store.conversation(&history.id), Ok(Some(row)) if row.id == history.id);
        let begins =
            history.located.as_ref().is_none_or(|l| l.conversation != history.id && history.inherits.is_none());
        begins && history.old().edits.is_empty() && !history.chain.is_empty() && !known()
    }

    /// The rules that find room in a window, the oldest first, and how many do not.
    fn with_room<'a>(&self, draft: &Draft<'_>, rules: &'a [Rule], window: Tokens) -> (Vec<&'a Rule>, usize) {
        let mut room = window / ALL_PINS;
        let fits = |rule: &&Rule| {
            let tokens = self.measure.count(&draft.situation.key, &rule.text);
            let fits = tokens <= room.min(window / LARGEST_PIN);
            room -= if fits { tokens } else { 0 };
            fits
        };
        let kept: Vec<&Rule> = rules.iter().filter(fits).collect();
        let left_out = rules.len() - kept.len();
        (kept, left_out)
    }

    /// `GET /windowsill/rules`: every rule, by number.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub fn rules(&self) -> Result<Value, Error> {
        let (all, _) = self.store.rules()?;
        Ok(json!({"rules": all.iter().map(shown).collect::<Vec<_>>()}))
    }

    /// `POST /windowsill/rules`: a rule for new conversations of the client and project that a conversation is of.
    ///
    /// # Errors
    /// 404 for an unknown conversation, 409 where it has no project that rules could be of, 400 for a text that is no rule.
    pub async fn add_rule(&self, id: &str, text: &str) -> Result<Value, Error> {
        let text = worded(text)?;
        let row = self.whole_row(id).await?;
        let scope = Scope::from_json(&row.state["scope"]).ok_or_else(no_project)?;
        let _turn = self.standing_turn.lock().await;
        let (all, highest) = self.store.rules()?;
        let own: Vec<&Rule> = all.iter().filter(|rule| scope.has(rule)).collect();
        if let Some(same) = own.iter().find(|rule| rule.text == text) {
            return Err(Error::client(409, "nothing_to_do", format!("that is rule {} already", same.id), ""));
        }
        if own.len() >= MOST {
            let message = format!("this project has {MOST} rules, which is the most");
            return Err(Error::client(400, "bad_rule", message, "remove one first: `windowsill rules`"));
        }
        let (now_ms, Scope { client, project }) = (now_ms(), scope);
        let conversation = row.id.clone();
        let rule =
            Rule { id: highest + 1, client, project, text, conversation, created_ms: now_ms, updated_ms: now_ms };
        let told = shown(&rule);
        self.change_rule(RuleChange::Put(rule), "added", Some(unchanged(&row, now_ms))).await?;
        Ok(told)
    }

    /// `PUT /windowsill/rules/{n}`: other words for a rule. Conversations that have the old ones keep them.
    ///
    /// # Errors
    /// 404 for an unknown rule, 400 for a text that is no rule.
    pub async fn edit_rule(&self, number: i64, text: &str) -> Result<Value, Error> {
        let text = worded(text)?;
        let _turn = self.standing_turn.lock().await;
        let rule = Rule { text, updated_ms: now_ms(), ..self.rule(number)? };
        let told = shown(&rule);
        self.change_rule(RuleChange::Put(rule), "edited", None).await?;
        Ok(told)
    }

    /// `DELETE /windowsill/rules/{n}`: new conversations no longer get it.
    ///
    /// # Errors
    /// 404 for an unknown rule.
    pub async fn remove_rule(&self, number: i64) -> Result<Value, Error> {
        let _turn = self.standing_turn.lock().await;
        let rule = self.rule(number)?;
        self.change_rule(RuleChange::Remove(number), "removed", None).await?;
        Ok(shown(&rule))
    }

    fn rule(&self, number: i64) -> Result<Rule, Error> {
        let (all, _) = self.store.rules()?;
        all.into_iter().find(|rule| rule.id == number).ok_or_else(|| {
            Error::client(404, "not_found", format!("there is no rule {number}"), "`windowsill rules` lists them")
        })
    }

    async fn change_rule(
        &self,
        change: RuleChange,
        action: &str,
        of: Option<crate::store::ConversationUpdate>,
    ) -> Result<(), Error> {
        let number = match &change {
            RuleChange::Put(rule) => rule.id,
            RuleChange::Remove(number) => *number,
        };
        let conversation = of.as_ref().map(|update| update.id.clone());
        let data = json!({"rule": number, "action": action});
        let event = Event { now_ms: now_ms(), conversation, kind: "rule".into(), data };
        let batch =
            Batch { conversation: of, rule: Some(change), events: vec![event], durable: true, ..Batch::default() };
        Ok(self.store.record(batch).await?)
    }
}

fn shown(rule: &Rule) -> Value {
    json!({
        "rule": rule.id, "client": rule.client, "project": rule.project, "text": rule.text,
        "conversation": rule.conversation, "created_ms": rule.created_ms, "updated_ms": rule.updated_ms,
    })
}

/// The words of a rule.
fn worded(text: &str) -> Result<String, Error> {
    let text = text.trim();
    let bad = |message: String| Error::client(400, "bad_rule", message, "say in a few sentences what always holds");
    match text.len() {
        0 => Err(bad("an empty text is no rule".into())),
        1..=LONGEST => Ok(text.to_owned()),
        bytes => Err(bad(format!("it has {bytes} bytes, and a rule may have {LONGEST}"))),
    }
}

fn no_project() -> Error {
    let message = "windowsill does not know which client and project this conversation is of";
    let hint = "set `rules = true` in [context] and send the next request; a client can name its project with the header \
                x-windowsill-project";
    Error::client(409, "no_project", message, hint)
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

    #[test]
    fn a_rule_has_words_and_not_too_many() {
        assert_eq!(worded("  Use tabs. ").unwrap(), "Use tabs.");
        assert!(worded(" ").is_err() && worded(&"x".repeat(LONGEST + 1)).is_err());
    }
}
