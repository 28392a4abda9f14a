// The requests that came lately: what each cost and where its time went.

import { html, useMemo, useState, useEffect } from "./lib.js";
import { useData, useFocusKept, Card, Scroll, Wrong } from "./use.js";
import { get, listen } from "./api.js";
import { count, percent, seconds, clock } from "./format.js";

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

// Where the time of a request went, as parts of a bar: reading the prompt, writing the reply, and the rest.
function Time({ data }) {
  const all = data.milliseconds;
  if (!(all > 0)) return html`<span class="soft">–</span>`;
  const read = Math.min(all, data.prompt_milliseconds ?? 0);
  return html`<span class="time" role="img" aria-label=${`${seconds(all / 1000)}${read ? `, ${seconds(read / 1000)} of it reading` : ""}`} title=${read ? `reading ${seconds(read / 1000)}, writing and the rest ${seconds((all - read) / 1000)}` : seconds(all / 1000)}>
    <i class="read" style=${{ width: `${(read / all) * 100}%` }}></i><i class="wrote" style=${{ width: `${100 - (read / all) * 100}%` }}></i></span> ${seconds(all / 1000)}`;
}

const END = { complete: "200", hung_up: "the client left", broke_off: "broke off" };

function Line({ event, title }) {
  const d = event.data;
  const failed = event.kind === "request_failed";
  const role = ROLES[d.role] ?? d.role;
  return html`<tr class=${failed || (d.end && d.end !== "complete") ? "failed" : ""}>
    <td class="num"><time title=${new Date(event.time_ms).toLocaleString()}>${clock(event.time_ms)}</time></td>
    <td>${failed ? html`<b class="red">${d.status}</b>` : END[d.end] ?? d.end ?? "200"}</td>
    <td>${event.conversation ? html`<a href=${`#/c/${encodeURIComponent(event.conversation)}`}>${title ?? event.conversation}</a>` : html`<span class="soft">–</span>`}${role && html`<span class="soft"> · ${role}</span>`}
      ${failed && html`<span class="under red">${d.reason ?? d.code ?? ""}</span>`}</td>
    <td class="optional">${d.model ?? ""}</td><td class="num">${count(d.prompt_tokens)}</td><td class="num optional">${d.prompt_tokens > 0 ? percent((d.cached_tokens ?? 0) / d.prompt_tokens) : "–"}</td>
    <td class="num optional">${count(d.completion_tokens)}</td><td class="optional">${d.action && d.action !== "none" ? d.action : ""}</td><td class="num">${failed ? "–" : html`<${Time} data=${d} />`}</td></tr>`;
}

const percentile = (sorted, p) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * p))];

function Hour({ events }) {
  const since = Date.now() - 3600_000;
  const done = events.filter((event) => event.kind === "model_usage" && event.data.role === "main" && event.time_ms > since);
  const failed = events.filter((event) => event.kind === "request_failed" && event.time_ms > since).length;
  const times = done.map((event) => event.data.milliseconds / 1000).sort((a, b) => a - b);
  const [prompt, cached] = done.reduce(([p, c], { data }) => [p + (data.prompt_tokens ?? 0), c + (data.cached_tokens ?? 0)], [0, 0]);
  const figure = (value, what) => html`<div class="card figure"><b>${value}</b><span>${what}</span></div>`;
  return html`<div class="three">${figure(count(done.length), `requests answered in the last hour${failed ? `, ${count(failed)} failed` : ""}`)}
    ${figure(times.length ? `${seconds(percentile(times, 0.5))} · ${seconds(percentile(times, 0.95))}` : "–", "median and 95th percentile of a request's time")}
    ${figure(prompt ? percent(cached / prompt) : "–", "of the prompts came from the servers' caches")}</div>`;
}

export function Requests() {
  useFocusKept();
  const [events, error] = useRequests();
  const [answer] = useData("/windowsill/conversations", { wants: (event) => event.kind === "model_usage" });
  const titles = useMemo(() => new Map((answer?.conversations ?? []).map((row) => [row.id, row.title])), [answer]);
  return html`<div class="side"><div class="title"><h1>Requests</h1></div>
    ${events && html`<${Hour} events=${events} />`}
    <${Card} title="The newest first" small=${events && events.length === KEPT ? `the last ${KEPT}` : null}>
      ${error && html`<${Wrong} error=${error} />`}
      ${events?.length === 0 && html`<p class="empty">No requests yet.</p>`}
      ${events?.length > 0 && html`<${Scroll} label="Requests"><table class="requests"><thead><tr><th scope="col" class="num">Time</th><th scope="col">Status</th><th scope="col">Conversation</th><th scope="col" class="optional">Model</th>
        <th scope="col" class="num">Prompt</th><th scope="col" class="num optional">From cache</th><th scope="col" class="num optional">Reply</th><th scope="col" class="optional">Rewritten</th><th scope="col" class="num">Reading, writing</th></tr></thead>
        <tbody>${events.map((event) => html`<${Line} key=${event.id} event=${event} title=${titles.get(event.conversation)} />`)}</tbody></table><//>`}<//></div>`;
}
