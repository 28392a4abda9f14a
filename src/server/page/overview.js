// What is going on: conversations, what was saved, and the servers with their windows.

import { html, useState } from "./lib.js";
import { post } from "./api.js";
import { useData, useFocusKept, Ago, Card, Copy, Scroll, Wrong } from "./use.js";
import { count, percent, phase, plural, program, bytes, model, seconds } from "./format.js";
import { Thin } from "./strip.js";

const MINUTE = 60 * 1000;
const DAY = 24 * 60 * MINUTE;
const SPANS = [["the last 24 hours", DAY], ["the last 7 days", 7 * DAY], ["all time", 0]];
// A conversation that had a request so lately is live.
const LIVE = 10 * 60 * 1000;

const Figure = ({ value, children }) => html`<div class="card figure"><b>${value}</b><span>${children}</span></div>`;

function Saved({ busy }) {
  const [span, choose] = useState(2);
  const [since, setSince] = useState(0);
  const pick = (e) => {
    const n = Number(e.target.value);
    choose(n);
    // To the minute: all open pages ask the same, and are served by one answer.
    setSince(SPANS[n][1] ? Math.floor((Date.now() - SPANS[n][1]) / MINUTE) * MINUTE : 0);
  };
  const [report, error] = useData(`/windowsill/report?since=${since}`, { wants: busy });
  return html`<div class="title"><h1>Overview</h1><label class="actions soft">What was saved, <select aria-label="Of which time" value=${span} onchange=${pick}>${SPANS.map(([name], n) => html`<option key=${n} value=${n}>${name}</option>`)}</select></label></div>
    <div class="three" id="saved">${error && !report ? html`<${Wrong} error=${error} />` : html`
      <${Figure} value=${`${report?.kept_out_is_estimated ? "about " : ""}${count(report?.kept_out_tokens)}`}>tokens that ${plural(report?.rewrites ?? 0, "rewrite")} took out of prompts; the model read ${count(report?.read_back_tokens)} back, and about ${count(report?.recalled_ahead_tokens)} came back by themselves<//>
      <${Figure} value=${count(report?.cached_tokens)}>tokens that came from the servers' caches${report?.prompt_tokens ? `: ${percent(report.cached_tokens / report.prompt_tokens)} of all prompts` : ""}<//>
      <${Figure} value=${report?.not_waited_seconds > 0 ? seconds(report.not_waited_seconds) : "–"}>of reading saved by the caches, at the servers' measured speed<//>`}</div>`;
}

function memory(m) {
  const held = typeof m.held_bytes === "number" ? `${bytes(m.held_bytes)} held` : null;
  const free = m.memory ? [m.memory.gpu_bytes > 0 ? `${bytes(m.memory.gpu_bytes)} GPU` : null, `${bytes(m.memory.ram_bytes)} RAM`].filter(Boolean).join(" + ") : null;
  return [held, free && `${free} to use`].filter(Boolean).join(", ") || "–";
}

// A model is taken into memory, or given up, where its server can be told to.
function Switch({ m, changed }) {
  const [said, say] = useState(null);
  if (!m.can_be_told) return null;
  const tell = (what, more = {}) => async () => {
    say({ busy: what === "load" ? "loading …" : "giving it up …" });
    try { await post(`/windowsill/models/${what}`, { model: m.model, upstream: m.upstream, ...more }); await changed(); say(null); } catch (problem) { say({ problem }); }
  };
  const best = m.affordable?.num_ctx;
  const button = (words, act) => html`<button type="button" class="copy" disabled=${Boolean(said?.busy)} onclick=${act} aria-label=${`${words}: ${m.model}`}>${words}</button> `;
  return html`<span class="under">${said?.busy ? html`<span class="soft" role="status">${said.busy}</span>` : html`${m.loaded ? button("Unload", tell("unload")) : button("Load", tell("load"))}
    ${m.takes_window && best > 0 && best !== (m.loaded ? m.window : null) && button(`Load with ${count(best)}`, tell("load", { num_ctx: best }))}`}${said?.problem && html`<span class="wrong">${said.problem.message}</span>`}</span>`;
}

const Model = ({ m, changed }) => (m.error
  ? html`<tr><td>${m.upstream}</td><td colspan="6" class="wrong">${m.error}</td></tr>`
  : html`<tr><td title=${m.model}>${model(m.model)}</td><td>${m.upstream}${m.kind && m.kind !== m.upstream ? ` · ${m.kind}` : ""}</td><td class="num">${count(m.window)}</td>
      <td class="num">${count(m.affordable?.num_ctx)}</td><td class="num">${count(m.trained)}</td><td class="optional">${memory(m)}</td>
      <td><span class=${m.loaded ? "green" : "soft"}>${m.loaded ? "loaded" : "not loaded"}</span><${Switch} m=${m} changed=${changed} /></td></tr>`);

function Models({ servers, error, changed }) {
  return html`<${Card} title="Models and their windows" id="models">
    ${error && !servers ? html`<${Wrong} error=${error} />`
    : !servers ? html`<p class="soft">asking the servers …</p>`
    : servers.models.length === 0 ? html`<p class="empty">No inference server was found. Start Ollama or llama-server, or name one with <code>--upstream URL</code>.</p>`
    : html`<${Scroll} label="Models"><table><thead><tr><th scope="col">Model</th><th scope="col">Server</th><th class="num" scope="col">Window</th><th class="num" scope="col">Would fit</th>
        <th class="num" scope="col">Trained for</th><th scope="col" class="optional">Memory</th><th scope="col">State</th></tr></thead>
        <tbody>${servers.models.map((m, n) => html`<${Model} key=${`${m.upstream}/${m.model}/${n}`} m=${m} changed=${changed} />`)}</tbody></table><//>`}<//>`;
}

const STANDING = { ready: ["green", "ready"], down: ["red", "down"], draining: ["yellow", "draining: gets no new requests"] };

// The servers, where a request may go to one of several.
function Fleet() {
  const [answer] = useData("/windowsill/upstreams", { wants: (event) => ["failover", "request_failed", "model_usage"].includes(event.kind), every: 10 });
  const all = answer?.upstreams ?? [];
  if (all.length < 2) return null;
  const line = (one) => {
    const [color, words] = STANDING[one.standing] ?? ["soft", one.standing];
    return html`<tr key=${one.upstream}><td>${one.upstream}<span class="soft under">${one.url}</span></td><td><span class=${color}>${words}</span>${one.why && html`<span class="soft under">${one.why}</span>`}</td>
      <td class="num">${count(one.open)}</td><td class="num optional">${count(one.answered)}</td><td class="num optional">${count(one.moved)}</td><td class="num optional">${one.prompt_tokens_per_second ? count(Math.round(one.prompt_tokens_per_second)) : "–"}</td></tr>`;
  };
  return html`<${Card} title="Servers" id="fleet" small=${`${count(all.filter((one) => one.standing === "ready").length)} of ${count(all.length)} ready`}><${Scroll} label="Servers"><table><thead><tr><th scope="col">Server</th><th scope="col">State</th>
    <th class="num" scope="col">Open</th><th class="num optional" scope="col">Answered</th><th class="num optional" scope="col">Moved to others</th><th class="num optional" scope="col">Prompt tokens/s</th></tr></thead><tbody>${all.map(line)}</tbody></table><//><//>`;
}

function Line({ row, failed }) {
  const { spend, pressure } = row.state ?? {};
  const cached = spend?.prompt_tokens > 0 ? percent(spend.cached_tokens / spend.prompt_tokens) : "–";
  const live = Date.now() - row.last_request_ms < LIVE;
  // A request that failed after the last one that was answered.
  const wrong = failed && failed.time_ms > row.last_request_ms ? failed : null;
  return html`<tr class=${wrong ? "failed" : ""}>
    <td>${live && html`<span class="lately" title="had a request in the last ten minutes">● </span>`}${row.starred && html`<span class="star" title="starred">★ </span>`}<a href=${`#/c/${encodeURIComponent(row.id)}`}>${row.title || row.id}</a>
      <span class="soft under">${[program(row.state), row.parent && `branched off ${row.parent.conversation}`, row.helper && "a client's helper"].filter(Boolean).join(" · ")}${wrong && html`<b class="red"> failed: ${wrong.data.status}${wrong.data.code ? `, ${wrong.data.code}` : ""}</b>`}</span></td>
    <td class="optional" title=${row.model}>${model(row.model, 28)}</td><td><${Thin} state=${row.state} /></td>
    <td class="num">${row.severity ? html`<span class=${row.severity}>${percent(pressure)}</span>` : "–"}</td>
    <td class="num optional">${cached}</td><td class="num optional">${count(row.messages)}</td>
    <td class="num optional">${row.rewrites > 0 ? count(row.rewrites) : "–"}</td><td>${row.under_way ? html`<span class="green">under way, <${Ago} ms=${row.under_way.since_ms} /></span><span class="soft under">${phase(row.under_way.phase)}</span>` : html`<${Ago} ms=${row.last_request_ms} />`}</td></tr>`;
}

const HEAD = [["Title"], ["Model", "optional"], ["Window"], ["Full", "num"], ["From cache", "num optional"], ["Messages", "num optional"], ["Rewrites", "num optional"], ["Last request"]];
function Table({ rows, failed }) {
  useFocusKept();
  return html`<${Scroll} label="Conversations"><table class="conversations"><thead><tr>${HEAD.map(([name, kind]) => html`<th key=${name} scope="col" class=${kind}>${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<${Line} key=${row.id} row=${row} failed=${failed.get(row.id)} />`)}</tbody></table><//>`;
}

// What a newcomer does first.
function First({ servers }) {
  const base = location.origin;
  const up = servers?.models.find((m) => !m.error);
  const curl = `curl ${base}/v1/chat/completions -H 'content-type: application/json' \\\n  -d '{"model": "${up?.model ?? "MODEL"}", "messages": [{"role": "user", "content": "Say hello."}]}'`;
  const lines = [["For this run alone", "windowsill launch claude"], ["For good", "windowsill wrap claude"], ["Any other client", `OPENAI_BASE_URL=${base}/v1 OPENAI_API_KEY=none`], ["Or by hand", curl]];
  return html`<div class="first" id="first"><p><b>Nothing was recorded yet.</b> Point a client at <code>${base}/v1</code>${up ? "" : ", once a server runs"}; its conversations appear here by themselves.
      The key may be anything, unless the config has an <code>api_key</code>.</p>
    ${up && html`<p><a class="btn" href="#/chat">Send a test message</a></p>`}
    <dl class="lines">${lines.map(([name, line]) => html`<dt key=${name}>${name}</dt><dd><pre tabindex="0">${line}</pre><${Copy} text=${line} /></dd>`)}</dl>
    <p class="soft"><code>claude</code> may be <code>codex</code>, <code>opencode</code>, <code>aider</code> and others: <code>windowsill launch --help</code> lists them.</p></div>`;
}

export function Overview({ servers, serversError, serversChanged }) {
  // Each request changes what is listed; what is only told of one (a warning, say) does not.
  const busy = () => true;
  const [answer, error] = useData("/windowsill/conversations", { wants: busy, every: 10 });
  const [failures] = useData("/windowsill/events?last=200&kind=request_failed", { wants: (event) => event.kind === "request_failed" });
  const failed = new Map((failures?.events ?? []).map((event) => [event.conversation, event]));
  const rows = answer?.conversations ?? [];
  const own = rows.filter((row) => !row.helper);
  const helpers = rows.filter((row) => row.helper);
  return html`<div class="side"><${Saved} busy=${busy} />
    <${Card} title="Conversations" small=${answer && count(own.length)}>
      ${error && html`<${Wrong} error=${error} />`}
      ${!answer && !error && html`<p class="soft">reading the record …</p>`}
      ${answer && rows.length === 0 && html`<${First} servers=${servers} />`}
      ${own.length > 0 && html`<${Table} rows=${own} failed=${failed} />`}
      ${helpers.length > 0 && html`<details id="helpers"><summary>${plural(helpers.length, "call")} of clients' own helpers: titles, tags, follow-ups</summary><${Table} rows=${helpers} failed=${failed} /></details>`}<//>
    <${Fleet} /><${Models} servers=${servers} error=${serversError} changed=${serversChanged} /></div>`;
}
