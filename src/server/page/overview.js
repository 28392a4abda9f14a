// All conversations, the servers and their windows, and what was spent.

import { h, count, percent, ago } from "./dom.js";
import { get } from "./api.js";
import { thin } from "./strip.js";

const sum = (rows, key) => rows.reduce((all, row) => all + (row.state?.spend?.[key] ?? 0), 0);

function figures(rows) {
  const prompt = sum(rows, "prompt_tokens");
  const cached = sum(rows, "cached_tokens");
  const figure = (value, what) => h("div", { class: "card figure" }, h("b", {}, value), h("span", {}, what));
  return h("div", { class: "three" },
    figure(count(prompt), "tokens sent to models"),
    figure(count(cached), prompt ? `of them not evaluated again: ${percent(cached / prompt)} came from the servers' caches` : "of them came from the servers' caches"),
    figure(count(sum(rows, "rewrites")), "rewrites, every original kept"));
}

function models(answer) {
  const line = (m) => m.error
    ? h("tr", {}, h("td", {}, m.upstream), h("td", { colspan: 5, class: "wrong" }, m.error))
    : h("tr", {}, h("td", {}, m.model), h("td", {}, `${m.upstream}${m.kind ? ` · ${m.kind}` : ""}`), h("td", { class: "num" }, count(m.window)),
        h("td", { class: "num" }, count(m.affordable?.num_ctx)), h("td", { class: "num" }, count(m.trained)), h("td", {}, m.loaded ? "loaded" : "not loaded"));
  return h("section", { class: "card" }, h("h2", {}, "Models and their windows"),
    answer.models.length === 0
      ? h("p", { class: "empty" }, "No inference server was found. Start Ollama or llama-server, or name one with ", h("code", {}, "--upstream URL"), ".")
      : h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Models" }, h("table", {},
          h("thead", {}, h("tr", {}, ["Model", "Server"].map((name) => h("th", { scope: "col" }, name)),
            ["Window", "Would fit", "Trained for"].map((name) => h("th", { class: "num", scope: "col" }, name)), h("th", { scope: "col" }, "State"))),
          h("tbody", {}, answer.models.map(line)))));
}

function conversations(rows) {
  const line = (row) => h("tr", {},
    h("td", {}, h("a", { href: `#/c/${encodeURIComponent(row.id)}` }, row.title || row.id)),
    h("td", {}, row.model), h("td", {}, thin(row.state)),
    h("td", { class: "num" }, row.severity ? h("span", { class: row.severity }, percent(row.state.pressure)) : "–"),
    h("td", { class: "num optional" }, count(row.messages)),
    h("td", { class: "optional" }, row.state?.action && row.state.action !== "none" ? row.state.action : "–"),
    h("td", {}, ago(row.updated_ms)));
  const body = h("tbody", {}, rows.map(line));
  return h("section", { class: "card" }, h("h2", {}, "Conversations ", h("small", {}, `· ${count(rows.length)}`)),
    rows.length === 0
      ? h("p", { class: "empty" }, "Nothing was recorded yet. Point a client at this address, and its conversations appear here.")
      : h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Conversations" }, h("table", {},
          h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Title"), h("th", { scope: "col" }, "Model"), h("th", { scope: "col" }, "Window"),
            h("th", { class: "num", scope: "col" }, "Pressure"), h("th", { class: "num optional", scope: "col" }, "Messages"),
            h("th", { class: "optional", scope: "col" }, "Last action"), h("th", { scope: "col" }, "Last turn"))), body)));
}

export async function overview(signal) {
  const list = h("div", {});
  const servers = h("div", {}, h("section", { class: "card" }, h("h2", {}, "Models and their windows"), h("p", { class: "soft" }, "asking the servers …")));
  const draw = async () => {
    const { conversations: rows } = await get("/windowsill/conversations", signal);
    list.replaceChildren(figures(rows), conversations(rows));
  };
  await draw();
  // Servers may take seconds to answer; nothing else waits for them.
  get("/windowsill/models", signal).then((answer) => servers.replaceChildren(models(answer)))
    .catch((e) => servers.replaceChildren(h("section", { class: "card wrong" }, e.message)));
  const node = h("div", { class: "side" }, h("div", { class: "title" }, h("h1", {}, "Overview")), list, servers);
  return { node, title: "Overview", onEvent: () => true, refresh: draw };
}
