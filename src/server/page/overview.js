// What is going on: servers and their windows, conversations, and what was saved.

import { h, count, percent, plural, ago } from "./dom.js";
import { get } from "./api.js";
import { thin } from "./strip.js";

const MINUTE = 60 * 1000;
const DAY = 24 * 60 * MINUTE;
const SPANS = [["today", DAY], ["the last 7 days", 7 * DAY], ["all time", 0]];
// A conversation that had a turn so lately is live.
const LIVE = 10 * 60 * 1000;

const long = (s) => (s < 90 ? `${Math.round(s)} seconds` : s < 5400 ? `${count(s / 60)} minutes` : `${(s / 3600).toFixed(1)} hours`);
const bytes = (n) => (typeof n !== "number" ? "–" : n >= 1 << 30 ? `${(n / (1 << 30)).toFixed(1)} GiB` : `${count(n / (1 << 20))} MiB`);

function figures(report) {
  const { prompt_tokens: prompt, cached_tokens: cached, kept_out_tokens: out } = report;
  const figure = (value, what) => h("div", { class: "card figure" }, h("b", {}, value), h("span", {}, what));
  return h("div", { class: "three", id: "saved" },
    figure(count(out), `tokens that ${plural(report.rewrites, "rewrite")} took out of prompts; ${count(report.read_back_tokens)} were read back`),
    figure(count(cached), prompt ? `tokens not evaluated again: ${percent(cached / prompt)} of the prompts came from the servers' caches` : "tokens not evaluated again"),
    figure(report.not_waited_seconds > 0 ? long(report.not_waited_seconds) : "–", "not waited for that, at the servers' measured speed"));
}

function memory(m) {
  const held = typeof m.held_bytes === "number" ? `${bytes(m.held_bytes)} held` : null;
  const free = m.memory ? [m.memory.gpu_bytes > 0 ? `${bytes(m.memory.gpu_bytes)} GPU` : null, `${bytes(m.memory.ram_bytes)} RAM`].filter(Boolean).join(" + ") : null;
  return [held, free && `${free} to use`].filter(Boolean).join(", ") || "–";
}

function models(answer) {
  const line = (m) => m.error
    ? h("tr", {}, h("td", {}, m.upstream), h("td", { colspan: 6, class: "wrong" }, m.error))
    : h("tr", {}, h("td", {}, m.model), h("td", {}, `${m.upstream}${m.kind ? ` · ${m.kind}` : ""}`), h("td", { class: "num" }, count(m.window)),
        h("td", { class: "num" }, count(m.affordable?.num_ctx)), h("td", { class: "num" }, count(m.trained)), h("td", { class: "optional" }, memory(m)), h("td", {}, m.loaded ? "loaded" : "not loaded"));
  return h("section", { class: "card" }, h("h2", {}, "Models and their windows"),
    answer.models.length === 0
      ? h("p", { class: "empty" }, "No inference server was found. Start Ollama or llama-server, or name one with ", h("code", {}, "--upstream URL"), ".")
      : h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Models" }, h("table", {},
          h("thead", {}, h("tr", {}, ["Model", "Server"].map((name) => h("th", { scope: "col" }, name)),
            ["Window", "Would fit", "Trained for"].map((name) => h("th", { class: "num", scope: "col" }, name)), h("th", { scope: "col", class: "optional" }, "Memory"), h("th", { scope: "col" }, "State"))),
          h("tbody", {}, answer.models.map(line)))));
}

function line(row) {
  const { spend, action, pressure } = row.state ?? {};
  const cached = spend?.prompt_tokens > 0 ? percent(spend.cached_tokens / spend.prompt_tokens) : "–";
  const live = Date.now() - row.updated_ms < LIVE;
  return h("tr", {},
    h("td", {}, live && h("span", { class: "lately", title: "had a turn in the last ten minutes" }, "● "), h("a", { href: `#/c/${encodeURIComponent(row.id)}` }, row.title || row.id),
      row.helper && h("span", { class: "soft" }, " · a client's helper")),
    h("td", { class: "optional" }, row.model), h("td", {}, thin(row.state)),
    h("td", { class: "num" }, row.severity ? h("span", { class: row.severity }, percent(pressure)) : "–"),
    h("td", { class: "num optional" }, cached), h("td", { class: "num optional" }, count(row.messages)),
    h("td", { class: "optional" }, action && action !== "none" ? action : "–"), h("td", {}, ago(row.updated_ms)));
}

function table(rows) {
  const head = [["Title"], ["Model", "optional"], ["Window"], ["Pressure", "num"], ["From cache", "num optional"], ["Messages", "num optional"], ["Last action", "optional"], ["Last turn"]];
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Conversations" }, h("table", {},
    h("thead", {}, h("tr", {}, head.map(([name, kind]) => h("th", { scope: "col", class: kind }, name)))), h("tbody", {}, rows.map(line))));
}

function conversations(rows) {
  const own = rows.filter((row) => !row.helper);
  const helpers = rows.filter((row) => row.helper);
  return h("section", { class: "card" }, h("h2", {}, "Conversations ", h("small", {}, `· ${count(own.length)}`)),
    rows.length === 0
      ? h("p", { class: "empty" }, "Nothing was recorded yet. Point a client at this address, and its conversations appear here.")
      : own.length > 0 && table(own),
    helpers.length > 0 && h("details", { id: "helpers" }, h("summary", {}, `${plural(helpers.length, "call")} of clients' own helpers: titles, tags, follow-ups`), table(helpers)));
}

export async function overview(signal) {
  const list = h("div", {});
  const saved = h("div", {});
  const servers = h("div", {}, h("section", { class: "card" }, h("h2", {}, "Models and their windows"), h("p", { class: "soft" }, "asking the servers …")));
  const select = h("select", { "aria-label": "Of which time", onchange: () => figure() }, SPANS.map(([name], n) => h("option", { value: n }, name)));
  select.value = "2";
  const figure = async () => {
    const span = SPANS[select.value][1];
    // To the minute: all open pages ask the same, and are served by one answer.
    const since = span ? Math.floor((Date.now() - span) / MINUTE) * MINUTE : 0;
    saved.replaceChildren(figures(await get(`/windowsill/report?since=${since}`, signal)));
  };
  const draw = async () => {
    const { conversations: rows } = await get("/windowsill/conversations", signal);
    list.replaceChildren(conversations(rows));
    figure().catch((e) => saved.replaceChildren(h("p", { class: "wrong" }, e.message)));
  };
  await draw();
  // Servers may take seconds to answer; nothing else waits for them.
  get("/windowsill/models", signal).then((answer) => servers.replaceChildren(models(answer)))
    .catch((e) => servers.replaceChildren(h("section", { class: "card wrong" }, e.message)));
  const node = h("div", { class: "side" }, h("div", { class: "title" }, h("h1", {}, "Overview"), h("label", { class: "actions soft" }, "What was saved, ", select)), saved, list, servers);
  return { node, title: "Overview", onEvent: () => true, refresh: draw };
}
