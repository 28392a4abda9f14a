// One conversation: what fills its window, both sides of its history, what was done, what it cost.

import { h, count, percent, ago } from "./dom.js";
import { get, of } from "./api.js";
import { strip } from "./strip.js";
import { chart } from "./chart.js";
import { Timeline } from "./list.js";
import { search } from "./search.js";
import { actions, standing, steps } from "./steer.js";

// Characters of one text that are shown at once: a browser lays out no megabytes.
const SHOWN = 100_000;

const WORDS = { red: "nearly full", yellow: "filling up", green: "room left" };
const ROLES = { main: "the talk", summary: "briefs", digest: "digests", recall: "recalls", prefill: "ahead", title: "titles" };

function meter(seen) {
  const { state, turns } = seen;
  const last = turns.at(-1);
  const cached = last?.cached_tokens > 0 && last.prompt_tokens > 0
    ? `${percent(last.cached_tokens / last.prompt_tokens)} of the last prompt came from the server's cache` : null;
  const grown = turns.filter((turn) => turn.added > 0 && !turn.rewritten).slice(-8).map((turn) => turn.added);
  const mean = grown.length ? grown.reduce((a, b) => a + b, 0) / grown.length : 0;
  const left = (state.lines?.fold_at ?? state.lines?.summarize_at ?? 0) - (state.prompt_tokens ?? 0);
  const soon = mean > 0 ? `a turn adds about ${count(mean)} tokens` : null;
  const fold = mean > 0 && left > 0 ? `fold in about ${count(Math.max(1, left / mean))} turns` : null;
  return h("div", { class: "meter" },
    h("b", { class: seen.severity ?? "" }, state.window ? percent(state.pressure) : count(state.prompt_tokens)),
    h("span", { class: "soft" }, state.window ? `${count(state.prompt_tokens)} of ${count(state.window)} tokens` : "tokens"),
    seen.severity && h("span", { class: `badge ${seen.severity}` }, WORDS[seen.severity]),
    h("span", { class: "right" }, [cached, soon, fold].filter(Boolean).join(" · ")));
}

function spent(seen) {
  const cell = (n) => h("td", { class: "num" }, count(n));
  return h("section", { class: "card" }, h("h2", {}, "Spent"), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Spent" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Model"), ["Sent", "Cached", "Evaluated"].map((name) => h("th", { class: "num", scope: "col" }, name)))),
    h("tbody", {}, seen.models.map((m) => h("tr", {}, h("td", {}, `${m.model}, ${ROLES[m.role] ?? m.role}`), cell(m.prompt_tokens), cell(m.cached_tokens), cell(m.evaluated_tokens)))))));
}

function readAgain(missed) {
  const said = [["file", "of a file"], ["query", "by the same query"], ["recall", "by recall"]].filter(([kind]) => missed?.[kind]).map(([kind, name]) => `${count(missed[kind])} ${name}`);
  return said.length ? h("p", { class: "why" }, `Read again after it had left the prompt: ${said.join(", ")}.`) : null;
}

function rewrites(seen) {
  const list = [...seen.rewrites].reverse().slice(0, 30);
  const item = (event) => h("li", {},
    h("details", {}, h("summary", {}, `${event.data.action}: ${count(event.data.before?.prompt)} → ${count(event.data.after?.prompt)} tokens`),
      h("p", { class: "why" }, ago(event.time_ms), event.data.asked_by ? " · asked for by you" : ""), h("ul", { class: "plain" }, (event.data.because ?? []).map((why) => h("li", {}, why)))));
  return h("section", { class: "card" }, h("h2", {}, "Rewrites ", h("small", {}, `· ${count(seen.did.compactions)}, ${count(seen.did.freed_tokens)} tokens freed`)),
    list.length ? h("ul", { class: "plain" }, list.map(item)) : h("p", { class: "why" }, "None: the model sees everything as the client has it."),
    readAgain(seen.state.missed));
}

function advice(seen) {
  if (!seen.advice.length) return null;
  return h("section", { class: "card" }, h("h2", {}, "Advice"), h("ul", { class: "plain" },
    seen.advice.map((a) => h("li", {}, a.what, a.key ? h("span", { class: "soft" }, " (", h("code", {}, a.key), " in config.toml)") : ""))));
}

function shown(text) {
  const rest = text.length - SHOWN;
  return h("pre", { tabindex: 0 }, rest > 0 ? `${text.slice(0, SHOWN)}\n… and ${count(rest)} characters more: windowsill recall prints them` : text);
}

async function message(id, at, pins, changed) {
  const m = await get(of(id, `/messages/${at}`));
  const edits = m.edits.flatMap((edit) => [
    h("p", { class: "why" }, edit.why, ` · ${count(edit.tokens)} tokens`, edit.record ? h("span", {}, " · original ", h("code", {}, edit.record)) : ""),
    h("details", { open: edit.kind !== "folded" }, h("summary", {}, edit.kind === "folded" ? `The brief of messages ${edit.from}–${edit.to - 1}` : "What the model sees"), shown(edit.text)),
  ]);
  return h("section", { class: "card", "aria-live": "polite", id: "message" },
    h("h2", {}, `Message ${m.at} · ${m.role} `, h("small", {}, `· ${count(m.tokens)} tokens`)),
    m.edits.length ? edits : h("p", { class: "why" }, "The model sees it as it is."),
    h("details", { open: true }, h("summary", {}, m.edits.length ? "The original, word for word" : "Its words"), shown(m.text)),
    steps(id, m, pins, changed));
}

// How near the ceilings are, and what the guardrails saw and did, the newest last.
function guardrails(seen) {
  const { ceilings, cost, watt_hours: energy } = seen.books;
  if (!seen.guardrails.length && !ceilings.length && cost === null && energy === null) return null;
  const severity = (share) => share >= 1 ? "red" : share >= 0.8 ? "yellow" : "green";
  const ceiling = (c) => h("li", {}, h("code", {}, c.key), ` ${count(c.spent)} of ${count(c.most)} `, h("span", { class: `badge ${severity(c.share)}` }, percent(c.share)));
  const paid = [cost !== null && `cost ${cost.toFixed(2)}`, energy !== null && `${energy.toFixed(1)} Wh`].filter(Boolean).join(" · ");
  return h("section", { class: "card", id: "guardrails" }, h("h2", {}, "Guardrails ", h("small", {}, paid && `· ${paid}`)), h("ul", { class: "plain" }, ceilings.map(ceiling),
    seen.guardrails.map((event) => h("li", {}, event.what, h("span", { class: "soft" }, ` · ${ago(event.time_ms)}`)))));
}

export async function conversation(id, signal) {
  // What fills the window takes a while to add up for a long session; its history is there at once.
  let seen = null;
  let pins = { pins: [], waiting: [], paused: false };
  const head = h("div", {}, h("p", { class: "soft" }, "adding up …"));
  const detail = h("div", {}, h("section", { class: "card" }, h("h2", {}, "Message"), h("p", { class: "why" }, "Choose a message: its original, what the model sees of it, and why.")));
  const side = h("div", { class: "side" });
  const held = h("div", {});
  let chosen = -1;
  const choose = async (at) => {
    chosen = at;
    try {
      const node = await message(id, at, pins, refresh);
      if (chosen === at) detail.replaceChildren(node);
    } catch (e) {
      detail.replaceChildren(h("section", { class: "card wrong" }, e.message));
    }
  };
  const finder = search(id, choose);
  const timeline = new Timeline(id, choose);
  const draw = () => {
    const since = seen.turns.length ? ` · last turn ${ago(seen.updated_ms)}` : "";
    head.replaceChildren(
      h("div", { class: "title" }, h("h1", {}, seen.title || seen.id), actions(seen, refresh)),
      h("p", { class: "sub" }, `${seen.model} · ${count(seen.messages)} messages · begun ${ago(seen.created_ms)}${since}${seen.state.task ? ` · task ${seen.state.task}` : ""} · `, h("code", {}, seen.id)),
      h("section", { class: "card" }, meter(seen), strip(seen)));
    side.replaceChildren(finder, detail, held,
      h("section", { class: "card" }, h("h2", {}, "Pressure by turn"), chart(seen.turns, seen.state)),
      spent(seen), rewrites(seen), guardrails(seen) ?? "", advice(seen) ?? "");
  };
  async function look() {
    seen = await get(of(id, "/insight"), signal);
    seen.fold = timeline.fold;
    draw();
    // What is pinned is priced by the server's own count, which may take a moment.
    pins = await get(of(seen.id, "/pins"), signal);
    held.replaceChildren(standing(seen.id, pins, refresh));
    timeline.pinned = new Set(pins.pins.flatMap((pin) => (pin.message === null ? [] : [pin.message])));
    timeline.draw();
  }
  async function refresh() {
    await timeline.refresh();
    await look();
    if (chosen >= 0) await choose(chosen);
  }
  await timeline.open(signal);
  const node = h("div", {}, head, h("div", { class: "grid" }, h("section", { class: "card" }, h("h2", {}, "History"), timeline.heads, timeline.node), side));
  const shown = () => {
    timeline.end();
    look().then(() => { document.title = `${seen.title || seen.id} — windowsill`; })
      .catch((e) => { if (!signal.aborted) head.replaceChildren(h("section", { class: "card wrong" }, e.message)); });
  };
  return { node, title: id, shown, onEvent: (event) => seen !== null && event.conversation === seen.id, refresh };
}
