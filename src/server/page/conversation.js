// One conversation: what fills its window, both sides of its history, what was done, what it cost.

import { html, useEffect, useMemo, useRef, useState } from "./lib.js";
import { of, listen, post, text } from "./api.js";
import { useData, Ago, Card, Copy, Scroll, Wrong, open, save } from "./use.js";
import { count, grouped, percent, plural, program, cut, model } from "./format.js";
import { Strip, about } from "./strip.js";
import { Chart } from "./chart.js";
import { Fitting, History, Rows, spoken } from "./history.js";
import { Actions, ListSteps, Pinned, Steps } from "./steer.js";
import { Filters, Search } from "./search.js";
import { House } from "./house.js";
import { Sides } from "./sides.js";

// Characters of one text that are shown at once: a browser lays out no megabytes.
const SHOWN = 100_000;

const WORDS = { red: "nearly full", yellow: "filling up", green: "room left" };
const ROLES = { main: "requests", summary: "briefs", digest: "digests", recall: "recalls", prefill: "read ahead", title: "titles" };
const WHO = { user: "you", assistant: "assistant", tool: "result", system: "system" };

function Meter({ seen }) {
  const { state, requests: turns } = seen;
  const last = turns.at(-1);
  const cached = last?.cached_tokens > 0 && last.prompt_tokens > 0
    ? `${percent(last.cached_tokens / last.prompt_tokens)} of the last prompt came from the server's cache` : null;
  const soon = seen.grows_by ? `a request adds about ${count(seen.grows_by)} tokens` : null;
  const fold = seen.fold_in_requests ? `fold in about ${plural(seen.fold_in_requests, "request")}` : null;
  return html`<div class="meter"><b class=${seen.severity ?? ""}>${about(state)}${state.window ? percent(state.pressure) : count(state.prompt_tokens)}</b>
    <span class="soft" title=${state.prompt_tokens_source ?? ""}>${state.window ? `${about(state)}${count(state.prompt_tokens)} of ${count(state.window)} tokens` : "tokens"}</span>
    ${seen.severity && html`<span class=${`badge ${seen.severity}`}>${WORDS[seen.severity]}</span>`}
    <span class="right">${[cached, soon, fold].filter(Boolean).join(" · ")}</span></div>`;
}

// Why nothing is rewritten though a line was passed, and why the lines are not where they were.
const reasons = (state) => [...(state.waits ?? []), state.walls?.moved].filter(Boolean);
const Waits = ({ seen }) => reasons(seen.state).length > 0 && html`<ul class="plain waits" id="waits">${reasons(seen.state).map((why) => html`<li key=${why} class="why">${why}</li>`)}</ul>`;

// Which messages fill the window, the largest first, each with what can be done about it.
function Largest({ seen, show, changed }) {
  const all = seen.largest ?? [];
  if (!all.length) return null;
  const name = (m) => spoken(m.call ?? m.calls?.[0] ?? "") || m.words || "";
  return html`<${Card} title="Largest messages" small="as the model sees them; tokens are estimates" id="largest"><ul class="plain">${all.map((m) => html`<li key=${m.at}>
    <button type="button" class="link" onclick=${() => show(m.at)}><span class="num">${count(m.view_tokens)}</span> <span class="soft">${m.at} · ${WHO[m.role] ?? m.role}</span> ${cut(name(m), 90)}</button>
    <${ListSteps} id=${seen.id} message=${m} changed=${changed} /></li>`)}</ul><//>`;
}

// What the tools take that are offered, and what of it was ever used. So many that were never called are worth a word.
const SPARE = 3;
const LISTED = 'tools = "auto"';
function Tools({ seen, filter, wanted, changed }) {
  const [problem, say] = useState(null);
  const { offered, tokens, of_ours: ours, called } = seen.tools ?? {};
  if (!offered && !called?.length) return null;
  const window = seen.state.window;
  const parts = [offered > 0 && plural(offered, "tool"), tokens > 0 && `${about(seen.state)}${count(tokens)} tokens${ours > 0 ? ` (about ${count(ours)} of them for windowsill's own)` : ""}`, `${count(called.length)} ever called`].filter(Boolean);
  const spare = offered - called.length >= SPARE && tokens > 0;
  const set = (listing) => async () => {
    try { await post(of(seen.id, "/tools"), { listing }); await changed(); say(null); } catch (e) { say(e); }
  };
  return html`<${Card} title="Tools" small=${parts.join(", ")} id="tools">
    ${spare && html`<p class="why">Each request sends all of them${window ? `: ${percent(tokens / window)} of the window` : ""}. With <code>${LISTED}</code> under <code>[context]</code> in config.toml, the model gets a line for each where room is short, and the rest when it asks. <${Copy} text=${`[context]\n${LISTED}\n`} label="Copy the lines" /> ${wanted !== "auto" && html`<button type="button" class="copy" onclick=${set("auto")}>Set it for this conversation</button>`}</p>`}
    ${wanted && html`<p class="why">Set for this conversation, from its next request on: <code>tools = "${wanted}"</code> <button type="button" class="copy" onclick=${set(null)}>Take it back</button></p>`}
    ${problem && html`<${Wrong} error=${problem} />`}
    ${called.length > 0 && html`<${Scroll} label="Tools"><table><thead><tr><th scope="col">Called</th><th scope="col" class="num">Times</th><th scope="col" class="num">Results now</th></tr></thead>
      <tbody>${called.slice(0, 12).map((tool) => html`<tr key=${tool.name}><td><button type="button" class="link" onclick=${() => filter(tool.name)}>${tool.name}</button></td><td class="num">${count(tool.calls)}</td><td class="num">about ${count(tool.tokens)}</td></tr>`)}</tbody></table><//>`}<//>`;
}

function Spent({ seen }) {
  const cell = (n) => html`<td class="num">${count(n)}</td>`;
  return html`<${Card} title="Spent"><${Scroll} label="Spent"><table><thead><tr><th scope="col">Model</th>${["In", "Cached", "Evaluated"].map((name) => html`<th key=${name} class="num" scope="col">${name}</th>`)}</tr></thead>
    <tbody>${seen.models.map((m) => html`<tr key=${`${m.model} ${m.role}`}><td title=${m.model}>${model(m.model)}, ${ROLES[m.role] ?? m.role}</td>${cell(m.prompt_tokens)}${cell(m.cached_tokens)}${cell(m.evaluated_tokens)}</tr>`)}</tbody></table><//><//>`;
}

// Requests that failed lately, the newest first.
function Failed({ id }) {
  const [page] = useData(`/windowsill/events?last=5&kind=request_failed&conversation=${encodeURIComponent(id)}`, { wants: (event) => event.kind === "request_failed" && event.conversation === id });
  const lately = (page?.events ?? []).filter((event) => Date.now() - event.time_ms < 3600_000).reverse();
  return lately.length > 0 && html`<section class="card failed" id="failed"><b class="red">The last request failed: ${lately[0].data.status}${lately[0].data.reason ? `, ${lately[0].data.reason}` : lately[0].data.code ? `, ${lately[0].data.code}` : ""}</b> <span class="soft">· <${Ago} ms=${lately[0].time_ms} />${lately.length > 1 && ` · ${lately.length} in the last hour`}</span></section>`;
}

function Rewrites({ seen }) {
  const list = [...seen.rewrites].reverse().slice(0, 30);
  const missed = [["file", "of a file"], ["query", "by the same query"], ["recall", "by recall"]].filter(([kind]) => seen.state.missed?.[kind]).map(([kind, name]) => `${count(seen.state.missed[kind])} ${name}`);
  return html`<${Card} title="Rewrites" small=${`${count(seen.did.compactions)} freed ${seen.did.freed_is_estimated ? "about " : ""}${count(seen.did.freed_tokens)} tokens`}>
    ${list.length ? html`<ul class="plain">${list.map(({ id, time_ms, data, undone, told }) => html`<li key=${id}><details><summary>${told}${undone && " (undone)"} <span class="soft">· <${Ago} ms=${time_ms} /></span></summary>
      ${data.focus && html`<p class="why">Its focus: <i>${data.focus}</i></p>`}
      <ul class="plain">${(data.because ?? []).map((why) => html`<li key=${why}>${grouped(why)}</li>`)}</ul></details></li>`)}</ul>`
    : html`<p class="why">None: the model sees everything as the client has it.</p>`}
    ${missed.length > 0 && html`<p class="why">Needed again after it had left the prompt: ${missed.join(", ")}.</p>`}<//>`;
}

const Advice = ({ seen }) => seen.advice.length > 0 && html`<${Card} title="Advice"><ul class="plain">${seen.advice.map((a) => html`<li key=${a.what}>${a.what}${a.key && html`<span class="soft"> (<code>${a.key}</code> in config.toml)</span>`}</li>`)}</ul><//>`;

// How near the ceilings are, and what the guardrails saw and did, the newest last.
function Guardrails({ seen }) {
  const { ceilings, cost, watt_hours: energy } = seen.books;
  if (!seen.guardrails.length && !ceilings.length && cost === null && energy === null) return null;
  const severity = (share) => (share >= 1 ? "red" : share >= 0.8 ? "yellow" : "green");
  const paid = [cost !== null && `cost ${cost.toFixed(2)}`, energy !== null && `${energy.toFixed(1)} Wh`].filter(Boolean).join(" · ");
  return html`<${Card} title="Guardrails" small=${paid} id="guardrails"><ul class="plain">
    ${ceilings.map((c) => html`<li key=${c.key}><code>${c.key}</code> ${count(c.spent)} of ${count(c.most)} <span class=${`badge ${severity(c.share)}`}>${percent(c.share)}</span></li>`)}
    ${seen.guardrails.map((event) => html`<li key=${`${event.time_ms} ${event.what}`}>${grouped(event.what)}<span class="soft"> · <${Ago} ms=${event.time_ms} /></span></li>`)}</ul><//>`;
}

function Shown({ words }) {
  const rest = words.length - SHOWN;
  return html`<div class="quoted"><${Copy} text=${words} /><pre tabindex="0">${rest > 0 ? `${words.slice(0, SHOWN)}\n… and ${count(rest)} characters more: copy or save it to have it whole` : words}</pre></div>`;
}

// An original, as it came.
function Original({ record }) {
  const keep = async () => save(`${record}.txt`, await text(`/windowsill/records/${encodeURIComponent(record)}`));
  return html` · original <code>${record}</code> <button type="button" class="copy" onclick=${keep}>Save</button>`;
}

// What came back by itself may not help: then it comes no more here.
function Useful({ id, at, edit, changed }) {
  const [said, say] = useState(null);
  const tell = async () => {
    try { await post(of(id, "/recalled"), { message: at, useful: !edit.useful }); await changed(); } catch (problem) { say(problem); }
  };
  return html`<p class="why" id="useful">${edit.useful ? "" : "It does not come back by itself in this conversation. "}<button type="button" class="copy" onclick=${tell}>${edit.useful ? "Not useful" : "It is useful after all"}</button>${said && html` <span class="wrong">${said.message}</span>`}</p>`;
}

function Panel({ id, at, pins, changed, leave }) {
  const [m, error, again] = useData(at < 0 ? null : of(id, `/messages/${at}`), { wants: (event) => event.conversation === id });
  const shell = (inner) => html`<section class=${at < 0 ? "card panel idle" : "card panel"} id=${at < 0 ? null : "message"} aria-live="polite">${inner}</section>`;
  if (at < 0) return shell(html`<h2>Message</h2><p class="why">Choose a message to see its original, what the model sees of it, and why.</p>`);
  if (error && !m) return shell(html`<${Wrong} error=${error} />`);
  if (!m) return shell(html`<p class="soft">reading …</p>`);
  return shell(html`<button type="button" class="btn leave" onclick=${leave} aria-label="Close the message">✕</button>
    <h2>Message ${m.at} · ${WHO[m.role] ?? m.role} <small>· about ${count(m.tokens)} tokens</small></h2>
    ${m.edits.length === 0 && html`<p class="why">The model sees it as it is.</p>`}
    ${m.edits.map((edit, n) => html`<div key=${`${m.at} ${n}`}><p class="why">${edit.why} ${["folded", "carried"].includes(edit.kind) ? "The brief takes" : "It takes"} about ${count(edit.tokens)} tokens in the prompt.${edit.record && html`<${Original} record=${edit.record} />`}</p>
      ${edit.kind === "recalled" && html`<${Useful} id=${id} at=${m.at} edit=${edit} changed=${again} />`}
      <details open=${edit.kind !== "folded"}><summary>${edit.kind === "folded" ? `The brief of messages ${edit.from}–${edit.to - 1}` : edit.kind === "carried" ? (edit.from < edit.to ? "The brief behind it" : "What is pinned, behind it") : edit.kind === "recalled" ? "What came back behind it" : "What the model sees"}</summary><${Shown} words=${edit.text} /></details></div>`)}
    <details open key=${m.at}><summary>${m.edits.length ? "The original, word for word" : "Its words"}</summary><${Shown} words=${m.text} /></details>
    <${Steps} id=${id} message=${m} pins=${pins} changed=${async () => { await changed(); await again(); }} />`);
}

export function Conversation({ id, goto, title }) {
  const [version, changedRows] = useState(0);
  const [error, fail] = useState(null);
  const [ready, say] = useState(false);
  const [chosen, choose] = useState(-1);
  const [go, bring] = useState(null);
  const rows = useMemo(() => new Rows(id, () => changedRows((n) => n + 1)), [id]);
  const [filter, sift] = useState(null);
  const [begun, begin] = useState({});
  const clearFilter = () => { sift(null); begin({}); };
  const ofTool = (tool) => { begin({ tool }); document.getElementById("filters").scrollIntoView({ block: "nearest" }); };
  const fitting = useMemo(() => filter && new Fitting(id, filter, () => changedRows((n) => n + 1)), [id, filter]);
  useEffect(() => { fitting?.more(); }, [fitting]);
  const shown = fitting ?? rows;
  const fresh = useRef(null);
  fresh.current = () => Promise.all([rows.refresh(rows.sight ?? [0, 0]), fitting?.refresh()]);
  const mine = (event) => event.conversation === id;
  // What fills the window takes a while to add up for a long session; its history is there at once.
  const [seen, insightError, look] = useData(ready ? of(id, "/insight") : null, { wants: mine });
  const [pins, pinsError, lookPins] = useData(ready ? of(id, "/pins") : null, { wants: mine });
  const none = { pins: [], waiting: [], paused: false };
  useEffect(() => {
    const leave = new AbortController();
    rows.open(leave.signal).then(() => say(true), (e) => { if (!leave.signal.aborted) fail(e); });
    let waiting = 0;
    const stop = listen((event) => {
      if (event && mine(event)) waiting ||= setTimeout(() => { waiting = 0; fresh.current().catch(() => {}); }, 300);
    });
    return () => { leave.abort(); stop(); clearTimeout(waiting); };
  }, [rows]);
  useEffect(() => { if (seen) title(cut(seen.title || seen.id, 60)); }, [seen?.title]);
  // A message that a filter leaves out is shown in the whole history.
  const show = (at) => { if (fitting && !fitting.line(at)) clearFilter(); choose(at); bring({ message: at }); };
  useEffect(() => { if (ready && goto !== null) show(goto); }, [ready, goto]);
  const changed = async () => { await Promise.all([fresh.current(), look(), lookPins()]); };
  const pinned = useMemo(() => new Set((pins?.pins ?? []).flatMap((pin) => (pin.message === null ? [] : [pin.message]))), [pins]);
  if (error) return html`<${Card} title="Conversation"><${Wrong} error=${error} /><p><a href="#/">All conversations</a></p><//>`;
  const both = seen && { ...seen, fold: rows.fold };
  return html`<div class="conversation">
    ${insightError && !seen && html`<section class="card"><${Wrong} error=${insightError} /></section>`}
    ${!seen && !insightError && html`<p class="soft">adding up …</p>`}
    ${seen && html`<div class="title"><h1>${seen.title || seen.id}</h1><${Actions} seen=${both} changed=${changed} sent=${() => open(html`<${Sides} id=${seen.id} model=${seen.model} />`)} /></div>
      <p class="sub">${[program(seen.state), model(seen.model), plural(seen.messages, "message")].filter(Boolean).join(" · ")} · begun <${Ago} ms=${seen.created_ms} />${seen.requests.length > 0 && html` · last request <${Ago} ms=${seen.last_request_ms} />`}
        ${seen.state.task && ` · task ${seen.state.task}`}${seen.parent && html` · branched off <a href=${`#/c/${encodeURIComponent(seen.parent.conversation)}`}>${seen.parent.conversation}</a>`} · <code>${seen.id}</code> <${Copy} text=${seen.id} /> <${House} seen=${seen} changed=${changed} /></p>
      <${Failed} id=${seen.id} /><section class="card gauge"><${Meter} seen=${seen} /><${Strip} seen=${seen} /><${Waits} seen=${seen} /></section>`}
    <div class="grid"><section class="card"><h2>History</h2><${Search} id=${id} show=${show} /><${Filters} begun=${begun} tools=${(seen?.tools?.called ?? []).map((tool) => tool.name)} change=${sift} found=${fitting?.told} /><div class="heads" aria-hidden="true"><span>What the client has${seen ? ` · about ${count(seen.client_tokens)} tokens` : ""}</span><span>What the model sees${seen ? ` · ${about(seen.state)}${count(seen.state.prompt_tokens)} tokens` : ""}</span></div>
      ${ready ? html`<${History} rows=${shown} version=${version} pinned=${pinned} chosen=${chosen} choose=${choose} go=${go} />` : html`<p class="soft">reading …</p>`}</section>
      <${Panel} id=${id} at=${chosen} pins=${pins ?? none} changed=${changed} leave=${() => choose(-1)} /></div>
    ${seen && html`<div class="columns"><div class="side"><${Pinned} id=${seen.id} pins=${pins} error=${pinsError} changed=${changed} /><${Largest} seen=${seen} show=${show} changed=${changed} /><${Tools} seen=${seen} filter=${ofTool} wanted=${pins?.tools} changed=${changed} /><${Advice} seen=${seen} /></div>
      <div class="side"><${Card} title="Pressure by request"><${Chart} turns=${seen.requests} state=${seen.state} /><//><${Spent} seen=${seen} /><${Guardrails} seen=${seen} /></div>
      <div class="side"><${Rewrites} seen=${seen} /></div></div>`}
  </div>`;
}
