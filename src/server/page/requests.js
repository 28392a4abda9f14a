// The requests that came lately: what each cost and where its time went.

import { html, useMemo, useState, useEffect } from "./lib.js";
import { useData, useFocusKept, Ago, Card, Scroll, Wrong, open } from "./use.js";
import { Sides } from "./sides.js";
import { get, listen } from "./api.js";
import { PHASES, count, model, named, percent, phase, plural, program, seconds, clock, rewritten } from "./format.js";

const KEPT = 300;
const KINDS = ["model_usage", "request_failed"];
const ROLES = { main: "", summary: "brief", digest: "digest", recall: "recall", prefill: "ahead", title: "title" };

// The events of requests, the newest first, growing as they come.
function useRequests() {
  const [events, set] = useState(null);
  const [error, fail] = useState(null);
  useEffect(() => {
    const leave = new AbortController();
    const add = (more) => set((old) => {
      const known = new Set((old ?? []).map((event) => event.id));
      return [...more.filter((event) => !known.has(event.id)), ...(old ?? [])].sort((a, b) => b.id - a.id).slice(0, KEPT);
    });
    get(`/windowsill/events?last=${KEPT}&kind=${KINDS.join(",")}`, leave.signal).then((page) => add(page.events)).catch((e) => { if (!leave.signal.aborted) fail(e); });
    const stop = listen((event) => { if (event && KINDS.includes(event.kind)) add([event]); });
    return () => { leave.abort(); stop(); };
  }, []);
  return [events, error];
}

// Where the time of a request went, in order.
export function phases(data) {
  const all = data.milliseconds;
  const known = data.phases ?? { prefill: Math.min(all, data.prompt_milliseconds ?? 0) };
  const told = PHASES.slice(0, -1).map(([name, words]) => ({ name, words, ms: known[name] ?? 0 }));
  const rest = all - told.reduce((sum, phase) => sum + phase.ms, 0);
  return [...told, { name: "other", words: data.phases ? "the rest" : "writing and the rest", ms: Math.max(0, rest) }];
}

function Time({ data }) {
  const all = data.milliseconds;
  if (!(all > 0)) return html`<span class="soft">–</span>`;
  const parts = phases(data).filter((phase) => phase.ms > 0);
  const sum = parts.reduce((total, phase) => total + phase.ms, 0);
  const long = [...parts].sort((a, b) => b.ms - a.ms).slice(0, 2).map((phase) => `${phase.words} ${seconds(phase.ms / 1000)}`);
  return html`<span class="time" role="img" aria-label=${`${seconds(all / 1000)}: ${long.join(", ")}`} title=${long.join(", ")}>${parts.map((phase) => html`<i key=${phase.name} class=${`p-${phase.name}`} style=${{ width: `${(phase.ms / sum) * 100}%` }}></i>`)}</span>`;
}

// Parts that are told however short they were.
const ALWAYS = ["prefill", "thinking", "answer"];

// What is known of one request, below its row.
function Detail({ event, columns }) {
  const d = event.data;
  const evaluated = d.evaluated_tokens ?? (d.prompt_tokens != null && d.cached_tokens != null ? d.prompt_tokens - d.cached_tokens : null);
  const words = (phase) => (phase.name === "prefill" && evaluated !== null ? `${phase.words}: ${plural(evaluated, "token")} new, ${count(d.cached_tokens ?? 0)} from the cache` : phase.words);
  const sides = () => open(html`<${Sides} key=${event.id} id=${event.conversation} model=${d.model} messages=${d.messages} />`);
  return html`<tr class="detail"><td colspan=${columns}><ul class="legend phases">${phases(d).filter((phase) => phase.ms >= 50 || (phase.ms > 0 && ALWAYS.includes(phase.name))).map((phase) => html`<li key=${phase.name}><b class=${`p-${phase.name}`}></b>${words(phase)} <em>${seconds(phase.ms / 1000)}</em></li>`)}</ul>
    ${d.upstream && html`<span class="soft">${d.upstream}${d.route ? ` (${d.route.because})` : ""} · </span>`}${d.messages > 0 && d.role === "main" && html`<button type="button" class="copy" onclick=${sides}>Received and sent…</button>`}</td></tr>`;
}

const END = { complete: "200", canceled: "the client left", failed: "broke off" };
const COLUMNS = 8;

function Line({ event, row, opened, toggle }) {
  const d = event.data;
  const failed = event.kind === "request_failed";
  const role = ROLES[d.role] ?? d.role;
  const tokens = failed ? count(d.prompt_tokens) : `${count(d.prompt_tokens)} · ${count(d.cached_tokens)} · ${count(d.completion_tokens)}`;
  return html`<tr class=${failed || (d.end && d.end !== "complete") ? "failed" : ""}>
    <td class="num"><time title=${new Date(event.time_ms).toLocaleString()}>${clock(event.time_ms)}</time></td>
    <td>${failed ? html`<b class="red">${d.status}</b>` : d.used === false ? "no use" : END[d.end] ?? d.end ?? "200"}</td>
    <td class="optional">${program(row?.state) ?? named(d.client) ?? ""}</td>
    <td>${event.conversation ? html`<a href=${`#/c/${encodeURIComponent(event.conversation)}`}>${row?.title ?? event.conversation}</a>` : html`<span class="soft">–</span>`}${role && html`<span class="soft"> · ${role}</span>`}
      ${failed && html`<span class="under red">${d.reason ?? d.code ?? ""}</span>`}</td>
    <td class="optional" title=${d.model ?? ""}>${model(d.model, 28)}</td><td class="num">${tokens}</td>
    <td class="optional">${rewritten(d.action)}</td>
    <td class="num">${failed ? "–" : html`<button type="button" class="link" aria-expanded=${opened ? "true" : "false"} onclick=${toggle}><${Time} data=${d} /> ${seconds(d.milliseconds / 1000)}</button>`}</td></tr>
    ${opened && html`<${Detail} key=${`d${event.id}`} event=${event} columns=${COLUMNS} />`}`;
}

// A request that waits for its reply.
const Running = ({ row }) => html`<tr class="running"><td class="num">${clock(row.under_way.since_ms)}</td><td><b class="green">under way</b>${row.under_way.phase && html`<span class="soft under">${phase(row.under_way.phase)}</span>`}</td><td class="optional">${program(row.state) ?? ""}</td>
  <td><a href=${`#/c/${encodeURIComponent(row.id)}`}>${row.title ?? row.id}</a>${row.under_way.requests > 1 && html`<span class="soft"> · ${count(row.under_way.requests)} of them</span>`}</td>
  <td class="optional" title=${row.model ?? ""}>${model(row.model, 28)}</td><td class="num"><span class="soft">about ${count(row.state?.prompt_tokens)}</span></td><td class="optional"></td><td class="num"><${Ago} ms=${row.under_way.since_ms} /></td></tr>`;

const percentile = (sorted, p) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * p))];

function Hour({ events }) {
  // Where more came than are held here, the figures are about those.
  const oldest = events.length === KEPT ? events.at(-1).time_ms : 0;
  const since = Math.max(oldest, Date.now() - 3600_000);
  const span = oldest >= since && oldest > 0 ? `the last ${Math.max(1, Math.round((Date.now() - since) / 60_000))} minutes` : "the last hour";
  const done = events.filter((event) => event.kind === "model_usage" && event.data.role === "main" && event.time_ms >= since);
  const failed = events.filter((event) => event.kind === "request_failed" && event.time_ms >= since).length;
  const times = done.map((event) => event.data.milliseconds / 1000).sort((a, b) => a - b);
  const [prompt, cached] = done.reduce(([p, c], { data }) => [p + (data.prompt_tokens ?? 0), c + (data.cached_tokens ?? 0)], [0, 0]);
  const figure = (value, what) => html`<div class="card figure"><b>${value}</b><span>${what}</span></div>`;
  return html`<div class="three">${figure(count(done.length), `requests answered in ${span}${failed ? `, ${count(failed)} failed` : ""}`)}
    ${figure(times.length ? `${seconds(percentile(times, 0.5))} · ${seconds(percentile(times, 0.95))}` : "–", `median and 95th percentile of a request's time in ${span}`)}
    ${figure(prompt ? percent(cached / prompt) : "–", `of the prompts came from the servers' caches in ${span}`)}</div>`;
}

export function Requests() {
  useFocusKept();
  const [events, error] = useRequests();
  const [answer] = useData("/windowsill/conversations", { wants: (event) => KINDS.includes(event.kind), every: 2 });
  const rows = useMemo(() => new Map((answer?.conversations ?? []).map((row) => [row.id, row])), [answer]);
  const running = (answer?.conversations ?? []).filter((row) => row.under_way);
  const [opened, unfold] = useState(new Set());
  const toggle = (id) => () => { const next = new Set(opened); if (!next.delete(id)) next.add(id); unfold(next); };
  return html`<div class="side"><div class="title"><h1>Requests</h1></div>
    ${events && html`<${Hour} events=${events} />`}
    <${Card} title="The newest first" small=${events && events.length === KEPT ? `the last ${KEPT}` : null}>
      ${error && html`<${Wrong} error=${error} />`}
      ${events?.length === 0 && running.length === 0 && html`<p class="empty">No requests yet.</p>`}
      ${(events?.length > 0 || running.length > 0) && html`<${Scroll} label="Requests"><table class="requests"><thead><tr><th scope="col" class="num">Time</th><th scope="col">Status</th><th scope="col" class="optional">Client</th><th scope="col">Conversation</th><th scope="col" class="optional">Model</th>
        <th scope="col" class="num">In · cached · out</th><th scope="col" class="optional">Rewritten</th><th scope="col" class="num">Where the time went</th></tr></thead>
        <tbody>${running.map((row) => html`<${Running} key=${`r${row.id}`} row=${row} />`)}${events.map((event) => html`<${Line} key=${event.id} event=${event} row=${rows.get(event.conversation)} opened=${opened.has(event.id)} toggle=${toggle(event.id)} />`)}</tbody></table><//>`}<//></div>`;
}
