//! windowsill itself, turn by turn: what `proxy` does with a server that counts, without the proxy. Measures exactly, plans,
//! applies, rewrites; asks a summarizer between requests or at the wall.

use std::rc::Rc;

use windowsill::conversation::edit::{Edit, View};
use windowsill::conversation::{Conversation, Message, Tokens};
use windowsill::measure;
use windowsill::measure::tokens::{self, estimate};
use windowsill::plan::rewrite::{self, Out};
use windowsill::plan::{self, Action, Cost, Facts, Plan, Policy, Strategy, economics};
use windowsill::store::Store;
use windowsill::{apply, brief};

use super::server::{Made, Prompt, Segment, Server, call_cost, size, text};
use super::sessions::{Session, Wanted, message_tokens};
use super::tally::Tally;

/// Tokens kept for the reply, as configured by default.
const OUTPUT_RESERVED: Tokens = 1024;

/// How often a plan is made anew because the view came out larger than planned, as `proxy` does.
const PLANS: usize = 4;

/// What the record calls the conversation.
const ID: &str = "c0123456789ab";

/// What a summarizer writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    /// Everything worth knowing that it is shown: flatters whoever asks it.
    Oracle,
    /// Nothing of use, in a sentence that passes for a summary.
    Blank,
}

impl Writer {
    /// Its answer to a prompt.
    pub(crate) fn answer(self, prompt: &str, wanted: &[Wanted]) -> String {
        let head =
            "## Current state\nThe work goes on one part at a time; nothing is finished and nothing is given up.";
        match self {
            Writer::Blank => head.to_owned(),
            Writer::Oracle => {
                let seen = wanted.iter().filter(|w| w.share(prompt) >= 0.5);
                let lines: Vec<String> = seen.map(|w| format!("- {}", w.line)).collect();
                format!("{head}\n## Technical context\n{}", lines.join("\n"))
            }
        }
    }
}

/// How windowsill is set.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) policy: Policy,
    pub(crate) background: bool,
    pub(crate) writer: Writer,
}

/// A replay under way.
struct Run<'a> {
    session: &'a Session,
    setting: &'a Setting,
    store: &'a Store,
    server: Server,
    conversation: Conversation,
    view: View,
    forwarded: usize,
    /// A brief made between requests.
    ready: Option<(String, usize)>,
    made: Made,
    tally: Tally,
}

/// What is about to be forwarded.
struct Draft {
    plan: Plan,
    view: View,
    out: Vec<Out>,
    prompt: Prompt,
}

/// Replays a session through windowsill.
pub(crate) fn replay(session: &Session, window: Tokens, setting: &Setting, store: &Store) -> Tally {
    let conversation =
        Conversation { system: session.system.clone(), tools: session.tools.clone(), ..Conversation::default() };
    let mut run = Run {
        session,
        setting,
        store,
        server: Server::new(window),
        conversation,
        view: View::default(),
        forwarded: 0,
        ready: None,
        made: Made::default(),
        tally: Tally::default(),
    };
    for end in &session.ends {
        run.turn(*end);
    }
    let reach = run.within_reach();
    let mut tally = run.tally;
    tally.end(session, &reach);
    tally
}

impl Run<'_> {
    fn turn(&mut self, end: usize) {
        self.tally.turns += 1;
        let known = self.conversation.body.len();
        self.conversation.body.extend_from_slice(&self.session.body[known..end]);
        let Some(draft) = self.draft() else { return self.tally.refuse() };
        let Some(served) = self.server.take(&draft.prompt) else { return self.tally.refuse() };
        let skipped = draft.prompt.len() - draft.out.len();
        let tokens = draft.out.iter().zip(&draft.prompt[skipped..]);
        let new = tokens.filter(|(o, _)| o.at.is_some_and(|at| at >= self.forwarded));
        let news = if self.forwarded == 0 { served.tokens } else { new.map(|(_, s)| s.tokens).sum() };
        self.tally.answer(&draft.prompt, served, news, end, self.server.window);
        let why: Vec<String> = draft.plan.because.iter().map(ToString::to_string).collect();
        let folded = draft.plan.actions.iter().any(|a| matches!(a, Action::Fold { .. }));
        let brief = draft.view.edits.iter().find_map(|e| match e {
            Edit::Fold { brief, .. } if folded => Some(estimate(brief)),
            _ => None,
        });
        self.tally.because(why.join("; "), brief);
        (self.view, self.forwarded) = (draft.view.clone(), end);
        self.between(&draft, news, end);
    }

    fn facts(&self) -> Facts {
        let Session { costs, system_tokens, tool_tokens, max_tokens, .. } = self.session;
        let body = &self.conversation.body;
        let edit_cost = |edit: &Edit| match edit {
            Edit::Arguments { at, call, arguments, .. } => call_cost(&body[*at].calls[*call].name, arguments),
            edit => tokens::edit(edit),
        };
        Facts {
            window: self.server.window,
            output_reserved: plan::output_reserved(
                self.server.window,
                system_tokens + tool_tokens,
                *max_tokens,
                OUTPUT_RESERVED,
            ),
            slack: measure::slack(self.server.window, measure::Sureness::Counted),
            system: *system_tokens,
            tools: *tool_tokens,
            costs: costs[..body.len()].to_vec(),
            edit_costs: self.view.edits.iter().map(edit_cost).collect(),
            told: brief::told(&self.view),
            view: self.view.clone(),
            forwarded: self.forwarded,
            ..Facts::default()
        }
    }

    /// Plans until the view fits what is counted.
    fn draft(&mut self) -> Option<Draft> {
        let mut facts = self.facts();
        let mut written: Option<Option<(String, usize)>> = None;
        for _ in 0..PLANS + 2 {
            let plan = plan::plan(&self.conversation, &facts, &self.setting.policy);
            if plan::gives_way(&mut facts, &plan, OUTPUT_RESERVED) {
                continue;
            }
            if !plan.fits {
                return None;
            }
            let asks = plan.actions.iter().find_map(|a| match a {
                Action::Fold { to, budget, ask_model: true, .. } => Some((*to, *budget)),
                _ => None,
            });
            let folds = plan.actions.iter().any(|a| matches!(a, Action::Fold { .. }));
            if let (Some((to, budget)), None) = (asks, &written) {
                let ready = self.ready.take().filter(|(_, covers)| self.is_enough(*covers, to, plan.lines.summary));
                let budget = budget.min(plan.lines.summary);
                written = Some(ready.or_else(|| Some((self.at_the_wall(to, budget)?, to))));
            } else if folds && written.is_none() {
                written = self.ready.take().map(Some);
            }
            let brief = written.as_ref().and_then(Option::as_ref);
            let view = if plan.actions.is_empty() {
                self.view.clone()
            } else {
                let input = apply::Input {
                    conversation: &self.conversation,
                    id: ID,
                    plan: &plan,
                    old: &self.view,
                    store: self.store,
                    count: &estimate,
                    words: apply::Words {
                        written: brief.map(|(text, covers)| apply::Written { text, read: *covers, unread: &[] }),
                        ..Default::default()
                    },
                };
                apply::apply(&input).expect("the record can be asked").view
            };
            let out = rewrite::rewrite(&self.conversation, &view, &self.setting.policy.template);
            let prompt = self.prompt(&out);
            if size(&prompt) <= plan.lines.limit {
                return Some(Draft { plan, view, out, prompt });
            }
            let low = f64::from(size(&prompt)) / f64::from(plan.after.prompt().max(1));
            plan::emergency::scale(&mut facts, low * 1.02);
        }
        None
    }

    fn prompt(&mut self, out: &[Out]) -> Prompt {
        let lead = self.session.system.len();
        let mut prompt: Prompt = self.session.head[..self.session.head.len() - lead].to_vec();
        let mut system = self.session.head[self.session.head.len() - lead..].iter();
        for message in out {
            prompt.push(match message.at {
                Some(at) if !message.changed || message.bytes == *self.conversation.body[at].bytes() => {
                    Rc::clone(&self.session.segments[at])
                }
                None if !message.changed => system.next().map_or_else(|| self.made.segment(&message.bytes), Rc::clone),
                _ => self.made.segment(&message.bytes),
            });
        }
        prompt
    }

    /// Asks for a brief while a request waits: the prompt that the server holds, up to the cut, and the instruction.
    fn at_the_wall(&mut self, to: usize, budget: Tokens) -> Option<String> {
        let out = rewrite::rewrite(&self.conversation, &self.view, &self.setting.policy.template);
        let shown: Vec<Out> = out.into_iter().take_while(|m| m.at.is_none_or(|at| at < to)).collect();
        let prompt = self.prompt(&shown);
        self.ask(prompt, to, budget)
    }

    /// What runs behind a reply: a brief ahead of need.
    fn between(&mut self, draft: &Draft, step: Tokens, end: usize) {
        let Setting { policy, background, .. } = self.setting;
        let budget = draft.plan.lines.brief;
        if draft.plan.actions.iter().any(|a| matches!(a, Action::Fold { .. })) {
            self.ready = None;
        }
        let (from, line) = draft.plan.lines.brief_at(size(&draft.prompt));
        let is_near = economics::brief_is_due(size(&draft.prompt), step, from, line);
        let (done, told) = self.told();
        let told = self.ready.as_ref().map_or(told, |(_, covers)| *covers);
        let (untold, lags) = (self.cost_of(told, self.conversation.body.len()), told < done);
        let wanted = *background
            && policy.strategy == Strategy::Summarize
            && (lags || is_near && economics::worth_keeping_up(untold, draft.plan.lines.summary));
        if wanted {
            let mut prompt = draft.prompt.clone();
            // The reply stands in the cache behind the prompt, where it calls no tools.
            let reply = self.session.body.get(end).filter(|m| m.calls.is_empty() && !m.text.is_empty());
            if let Some(reply) = reply.filter(|m| m.role == windowsill::conversation::Role::Assistant) {
                prompt.push(Segment::of(reply));
            }
            self.ready = self.ask(prompt, end, budget).map(|text| (text, end));
        }
    }

    /// Where the fold of the view ends, and how far what a model wrote in its brief goes.
    fn told(&self) -> (usize, usize) {
        let fold = self.view.edits.iter().find_map(|edit| match edit {
            Edit::Fold { to, brief, .. } => Some((*to, brief::goes_to(brief, *to).unwrap_or(0))),
            _ => None,
        });
        fold.unwrap_or_default()
    }

    fn cost_of(&self, from: usize, to: usize) -> Tokens {
        self.session.costs[from.min(to)..to].iter().map(Cost::total).sum()
    }

    /// Whether a brief tells so much of a fold up to `to` that another one is not worth asking for.
    fn is_enough(&self, covers: usize, to: usize, summary: Tokens) -> bool {
        covers >= self.told().0 && !economics::worth_keeping_up(self.cost_of(covers, to), summary)
    }

    fn ask(&mut self, mut prompt: Prompt, to: usize, budget: Tokens) -> Option<String> {
        let most = (budget / 4 * 3).min(self.setting.policy.summary_max_tokens);
        let instruction = brief::instruction(None, most, None);
        let room = self.server.window.saturating_sub(most + 32);
        // Newest messages go where the window leaves no room for the instruction and the answer.
        while size(&prompt) + message_tokens(&instruction) > room && prompt.len() > 1 {
            prompt.pop();
        }
        let answer = self.setting.writer.answer(&text(&prompt), &self.session.wanted);
        prompt.push(Segment::of_text("user", &instruction));
        let served = self.server.take(&prompt)?;
        self.tally.help(served);
        let messages: Vec<&Message> = self.conversation.body[..to].iter().collect();
        let material = brief::Material {
            messages: &messages,
            numbers: &[],
            previous: None,
            history_path: "",
            conversation: "",
            records: &[],
        };
        brief::judge(&answer, &instruction, &material, most, &estimate).ok()
    }

    /// Text that a recall would bring back: originals that the view names, and what was folded.
    fn within_reach(&self) -> String {
        let body = &self.conversation.body;
        let mut out = String::new();
        let mut bring = |at: usize| {
            out.push_str(&self.session.segments[at].text);
            out.push('\n');
        };
        for edit in &self.view.edits {
            match edit {
                Edit::Text { at, text, record, .. } if text.contains(record.as_str()) => bring(*at),
                Edit::Arguments { at, arguments, record, .. } if arguments.contains(record.as_str()) => bring(*at),
                Edit::Fold { from, to, brief, .. } if brief.contains("windowsill recall") => {
                    (*from..(*to).min(body.len())).for_each(&mut bring);
                }
                _ => {}
            }
        }
        out
    }
}
