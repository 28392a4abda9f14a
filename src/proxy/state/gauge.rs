//! The gauge of a conversation: the tokens of its prompt, region by region. What is told of that anywhere (the headline, the
//! regions, the chart, an event, a price and the headline after it) is worked out here, so that it is one number everywhere.
//! The regions add up to the prompt, and a system prompt, tools or a brief keep the count that they got first.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use crate::conversation::edit::View;
use crate::conversation::{Digest, Tokens};
use crate::measure::{Measure, ModelKey, own};
pub(in crate::proxy) use crate::plan::reason::reasons;
use crate::plan::rewrite::{ACKNOWLEDGED, acknowledges};
use crate::plan::{Kept, Regions};
use crate::recall;
use crate::wire::openai_chat::Request;

/// The window that is assumed where nobody knows it: so large that nothing is ever rewritten for it.
pub(in crate::proxy) const UNKNOWN_WINDOW: Tokens = 1 << 30;

/// Bytes of a list without tools.
const NO_TOOLS: usize = "[]".len();

/// Tokens by region.
#[derive(Serialize)]
pub(in crate::proxy) struct Parts {
    system: Tokens,
    tools: Tokens,
    brief: Tokens,
    history: Tokens,
    media: Tokens,
    output_reserved: Tokens,
    prompt: Tokens,
}

impl Parts {
    /// Of these.
    pub(in crate::proxy) fn of(r: &Regions) -> Parts {
        let Regions { system, tools, brief, history, media, output_reserved } = *r;
        Parts { system, tools, brief, history, media, output_reserved, prompt: r.prompt() }
    }
}

/// Regions as JSON.
pub(in crate::proxy) fn regions(r: &Regions) -> Value {
    json!(Parts::of(r))
}

/// What a prompt takes.
pub(in crate::proxy) struct Gauge {
    /// By region.
    pub(in crate::proxy) regions: Regions,
    /// Where the size of the whole is from, in words.
    pub(in crate::proxy) source: &'static str,
    /// The first counts of its fixed parts, to be kept with the conversation.
    pub(in crate::proxy) counts: BTreeMap<String, Tokens>,
    /// About what the tools of ours take of the region of tools.
    pub(in crate::proxy) ours: Tokens,
}

impl Gauge {
    /// (prompt + output reserved) / window, to four places.
    pub(in crate::proxy) fn pressure(&self, window: Option<Tokens>) -> f64 {
        let full = f64::from(self.regions.prompt()) + f64::from(self.regions.output_reserved);
        (full / f64::from(window.unwrap_or(UNKNOWN_WINDOW).max(1)) * 10_000.0).round() / 10_000.0
    }

    /// Writes it over what a conversation's state says.
    pub(in crate::proxy) fn write(&self, state: &mut Value) {
        state["regions"] = regions(&self.regions);
        state["prompt_tokens"] = json!(self.regions.prompt());
        state["prompt_tokens_source"] = json!(self.source);
        state["counts"] = json!(self.counts);
        state["tools_of_ours"] = json!(self.ours);
        let window = state["window"].as_u64().and_then(|n| Tokens::try_from(n).ok());
        if window.is_some() {
            state["pressure"] = json!(self.pressure(window));
        }
    }
}

/// What the client's own tools take of a count of all tools; `None` where ours are taken for as much as all of them, since that says
/// nothing of the client's. A count of none is one of none: the template writes no tools.
pub(in crate::proxy) fn without_ours(counted: Tokens, ours: Tokens) -> Option<Tokens> {
    if counted == 0 { Some(0) } else { counted.checked_sub(ours).filter(|own| *own > 0) }
}

/// What tells the fixed parts of a prompt before its model from those of others.
pub(in crate::proxy) struct Marks {
    pub(in crate::proxy) system: Digest,
    /// The tools without the one that reads back what left the prompt.
    pub(in crate::proxy) tools: Digest,
    /// Whether there are any.
    pub(in crate::proxy) has_tools: bool,
    pub(in crate::proxy) brief: Option<(Digest, Option<Tokens>)>,
    /// The tool that reads back what left the prompt, where it is there, and its tokens.
    pub(in crate::proxy) ours: Option<(Digest, Tokens)>,
}

impl Marks {
    /// Of the prompt that a view of a request makes. `asks`: the tool of ours takes questions; `offers`: it is there.
    pub(in crate::proxy) fn of(
        measure: &Measure,
        (key, own): (&ModelKey, Option<&own::Model>),
        request: &Request,
        view: &View,
        (offers, asks): (bool, bool),
    ) -> Marks {
        let mark = |what: &str, texts: &mut dyn Iterator<Item = &[u8]>| {
            let texts: String = texts.map(|text| Digest::of(text).hex()).collect();
            Digest::of(format!("{key}\0{what}\0{texts}").as_bytes())
        };
        // The model's vocabulary counts a brief by itself: its share of the whole prompt's count is as wrong as the estimates of the rest.
        let brief = view.brief().map(|brief| {
            let mark = mark("brief", &mut std::iter::once(brief.as_bytes()));
            let counted = || Some(own?.text(brief)?.saturating_add(own?.text(acknowledgment(request, view))?));
            (mark, measure.firsts.of(&mark).or_else(counted))
        });
        let tools = mark("tools", &mut request.own_tools().into_iter().map(|tools| &tools[..]));
        let has_tools = request.own_tools().is_some_and(|own| own.len() > NO_TOOLS);
        let ours = offers.then(|| {
            let definition = recall::definition(asks);
            let mark = mark("tool", &mut std::iter::once(definition.as_bytes()));
            let is_shown = !has_tools || measure.firsts.of(&tools) != Some(0) && measure.heads.of(&tools) != Some(0);
            let tokens = match is_shown {
                true => measure.firsts.of(&mark).unwrap_or_else(|| measure.text(key, own, &definition)),
                false => 0,
            };
            (mark, tokens)
        });
        let system = mark("system", &mut request.conversation.system.iter().map(|m| &m.bytes()[..]));
        Marks { system, tools, has_tools, brief, ours }
    }

    /// What stands for the brief of a view: its words, and what the assistant says behind it.
    pub(in crate::proxy) fn brief_of(request: &Request, view: &View) -> Option<String> {
        view.brief().map(|brief| [brief, acknowledgment(request, view)].concat())
    }

    /// Tokens of the tool that reads back what left the prompt, once it is there. None where the client's own tools take none: the
    /// model's template writes no tools at all. `asks`: the tool takes questions.
    pub(in crate::proxy) fn of_tool(
        measure: &Measure,
        model: (&ModelKey, Option<&own::Model>),
        request: &Request,
        asks: bool,
    ) -> Tokens {
        Marks::of(measure, model, request, &View::default(), (true, asks)).ours.map_or(0, |(_, tokens)| tokens)
    }

    /// The counts that its parts got before.
    pub(in crate::proxy) fn kept(&self, measure: &Measure) -> Kept {
        let first = |mark: &Digest| measure.firsts.of(mark);
        let ours = self.ours.map_or(0, |(_, tokens)| tokens);
        Kept {
            system: first(&self.system),
            tools: first(&self.tools).map(|tools| tools.saturating_add(ours)),
            brief: self.brief.map_or(Some(0), |(_, tokens)| tokens),
        }
    }

    /// Keeps the counts of parts that had none.
    pub(in crate::proxy) fn note(&self, measure: &Measure, counted: &Regions) {
        measure.firsts.note(self.system, counted.system);
        let ours = self.ours.map_or(0, |(_, tokens)| tokens);
        if let Some((mark, tokens)) = self.ours.filter(|_| ours <= counted.tools) {
            measure.firsts.note(mark, tokens);
        }
        if let Some(tools) = if self.has_tools { without_ours(counted.tools, ours) } else { Some(0) } {
            measure.firsts.note(self.tools, tools);
        }
        if let Some((brief, tokens)) = self.brief {
            measure.firsts.note(brief, tokens.unwrap_or(counted.brief));
        }
    }

    /// As they are kept with a conversation.
    pub(in crate::proxy) fn all(&self) -> Vec<Digest> {
        let ours = self.ours.iter().map(|(mark, _)| *mark);
        let brief = self.brief.iter().map(|(mark, _)| *mark);
        [self.system, self.tools].into_iter().chain(brief).chain(ours).collect()
    }
}

/// What the assistant says behind a brief, which is nobody's words.
fn acknowledgment(request: &Request, view: &View) -> &'static str {
    if acknowledges(&request.conversation.body, view) { ACKNOWLEDGED } else { "" }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::openai_chat::parse;

    fn request(tools: &Value) -> Request {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi."}], "tools": tools});
        parse(&Bytes::from(body.to_string())).expect("a request")
    }

    #[test]
    fn a_template_that_writes_no_tools_writes_none_of_ours() {
        let (measure, key) = (Measure::default(), ModelKey::new("u", "m"));
        let tool = json!([{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]);
        let of = |request: &Request| Marks::of(&measure, (&key, None), request, &View::default(), (true, false));
        let ours = |request: &Request| Marks::of_tool(&measure, (&key, None), request, false);
        let (with, without) = (request(&tool), request(&json!([])));
        let usual = ours(&with);
        assert!(usual > 50 && ours(&without) == usual, "{usual}");
        // A count of all tools that is no larger than what ours are taken for tells nothing of the client's.
        of(&with).note(&measure, &Regions { tools: usual / 2, ..Regions::default() });
        assert_eq!(ours(&with), usual);
        of(&with).note(&measure, &Regions { tools: 0, ..Regions::default() });
        assert_eq!((ours(&with), of(&with).kept(&measure).tools), (0, Some(0)));
    }

    #[test]
    fn the_clients_tools_are_what_a_count_has_beside_ours() {
        assert_eq!((without_ours(0, 124), without_ours(0, 0)), (Some(0), Some(0)));
        assert_eq!((without_ours(200, 124), without_ours(124, 124), without_ours(90, 124)), (Some(76), None, None));
    }
}
