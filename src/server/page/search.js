// Search: in one conversation, over everything that was ever said, and a filter of one history. Choosing a hit opens its message.

import { html, useEffect, useState } from "./lib.js";
import { get, of } from "./api.js";
import { useData, Card, Wrong } from "./use.js";

// Where a query over everything is shown.
export const everywhere = (query) => `#/search/${encodeURIComponent(query)}`;

// The box in the header. `/` focuses it.
export function Find({ query: asked }) {
  const [query, write] = useState(asked ?? "");
  useEffect(() => { if (asked !== undefined) write(asked); }, [asked]);
  const look = (e) => { e.preventDefault(); if (query.trim()) location.hash = everywhere(query.trim()); };
  return html`<form class="find" role="search" onsubmit=${look}><input type="search" id="find" name="find" autocomplete="off" placeholder="Search everything ( / )" aria-label="Search everything that was said"
    value=${query} oninput=${(e) => write(e.target.value)} /></form>`;
}

const WHO = { user: "you", assistant: "assistant", tool: "result", tool_result: "result", system: "system" };
const Remaking = ({ answer }) => answer?.unindexed > 0 && html`<p class="why">The index is being made anew: there may be more in a while.</p>`;

// What was found over everything, by conversation in the order of the best hits.
export function Everywhere({ query }) {
  const [answer, error] = useData(query ? `/windowsill/search?limit=50&query=${encodeURIComponent(query)}` : null);
  const groups = new Map();
  for (const hit of answer?.hits ?? []) groups.set(hit.conversation, [...(groups.get(hit.conversation) ?? []), hit]);
  return html`<div class="side" id="everywhere"><div class="title"><h1>Search</h1><span class="soft" role="status">${!query ? "" : answer ? `${answer.hits.length === 50 ? "the 50 best" : answer.hits.length} for “${query}”` : error ? "" : "searching …"}</span></div>
    ${error && html`<${Card}><${Wrong} error=${error} /><//>`}
    ${answer?.hits.length === 0 && html`<${Card}><p class="empty">Nothing fits.</p><//>`}
    ${[...groups].map(([id, hits]) => html`<${Card} key=${id}><h2 class="plainly"><a href=${`#/c/${encodeURIComponent(id)}`}>${hits[0].title || id}</a></h2>
      <ul class="plain hits-all">${hits.map((hit, n) => html`<li key=${`${hit.id} ${hit.message} ${n}`}><a href=${`#/c/${encodeURIComponent(id)}/${hit.message}`}>Message ${hit.message} · ${hit.call ?? WHO[hit.kind] ?? hit.kind}</a>
        <span class="soft">${hit.date ? ` · ${hit.date}` : ""}</span><div>${hit.snippet}</div></li>`)}</ul><//>`)}
    <${Remaking} answer=${answer} /></div>`;
}

export function Search({ id, show }) {
  const [query, write] = useState("");
  const [found, set] = useState(null);
  const look = async (e) => {
    e.preventDefault();
    if (!query.trim()) { set(null); return; }
    try {
      set({ answer: await get(of(id, `/search?limit=10&query=${encodeURIComponent(query)}`)) });
    } catch (error) {
      set({ error });
    }
  };
  const hits = found?.answer?.hits ?? [];
  return html`<div class="finder" id="search"><form class="search" onsubmit=${look}>
      <input type="search" name="query" autocomplete="off" placeholder="Search this conversation" aria-label="Search this conversation" value=${query} oninput=${(e) => { write(e.target.value); if (!e.target.value) set(null); }} />
      <button class="btn" type="submit">Search</button></form>
    <div aria-live="polite">${found?.error && html`<p class="wrong">${found.error.message}</p>`}
      ${found?.answer && hits.length === 0 && html`<p class="why">Nothing fits.</p>`}
      ${hits.length > 0 && html`<ul class="plain hits">${hits.map((hit, n) => html`<li key=${`${hit.id} ${n}`}><button type="button" class="link" onclick=${() => show(hit.message)}>Message ${hit.message} · ${hit.call ?? WHO[hit.kind] ?? hit.kind}</button>
        <span class="soft">${hit.date ? ` · ${hit.date}` : ""}</span><div>${hit.snippet}</div></li>`)}</ul>`}
      <${Remaking} answer=${found?.answer} /></div></div>`;
}

const ROLES = [["", "all"], ["user", "you"], ["assistant", "assistant"], ["tool", "results"], ["system", "system"]];

// A filter as a query; null where all messages are shown.
export function asked(filter) {
  const pairs = [["role", filter.role], ["tool", filter.tool], ["text", filter.text?.trim()], ["changed", filter.changed ? "true" : ""]].filter(([, value]) => value);
  return pairs.length ? pairs.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&") : null;
}

// Which messages of the history are shown. `tools`: the names of those that were called.
// `begun`: what another part of the page chose, once for each new object.
const NONE = { role: "", tool: "", text: "", changed: false };
export function Filters({ begun, tools, change, found }) {
  const [filter, set] = useState(NONE);
  useEffect(() => { set({ ...NONE, ...begun }); }, [begun]);
  const query = asked(filter);
  // What is typed counts once the typing pauses.
  useEffect(() => {
    const pause = setTimeout(() => change(query), 250);
    return () => clearTimeout(pause);
  }, [query]);
  const own = (name) => (e) => set({ ...filter, [name]: e.target.type === "checkbox" ? e.target.checked : e.target.value });
  return html`<div class="filters" id="filters" role="group" aria-label="Which messages are shown">
    <label>Show <select name="role" value=${filter.role} onchange=${own("role")}>${ROLES.map(([value, words]) => html`<option key=${value} value=${value}>${words}</option>`)}</select></label>
    ${tools.length > 0 && html`<label>Tool <select name="tool" value=${filter.tool} onchange=${own("tool")}><option value="">any</option>${tools.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>`}
    <label class="grow">With <input name="text" autocomplete="off" placeholder="these words in it" value=${filter.text} oninput=${own("text")} /></label>
    <label><input type="checkbox" name="changed" checked=${filter.changed} onchange=${own("changed")} /> only what was changed</label>
    ${query && html`<span class="soft" role="status">${found}</span><button type="button" class="link" onclick=${() => set(NONE)}>Show all</button>`}</div>`;
}
