// Search in one conversation: the passages that fit, the best first. Choosing one opens its message.

import { h } from "./dom.js";
import { get, of } from "./api.js";

export function search(id, choose) {
  const found = h("div", { "aria-live": "polite" });
  const input = h("input", { type: "search", name: "query", required: true, autocomplete: "off", "aria-label": "Search this conversation" });
  const item = (hit) => h("li", {},
    h("button", { type: "button", onclick: () => choose(hit.message) }, `${hit.message} · ${hit.call ?? hit.kind}`),
    h("span", { class: "soft" }, hit.date ? ` · ${hit.date}` : ""), h("div", {}, hit.snippet));
  const look = async (e) => {
    e.preventDefault();
    try {
      const answer = await get(of(id, `/search?limit=10&query=${encodeURIComponent(input.value)}`));
      const late = answer.unindexed > 0 ? h("p", { class: "why" }, "The index is being made anew: there may be more in a while.") : null;
      found.replaceChildren(answer.hits.length ? h("ul", { class: "plain" }, answer.hits.map(item)) : h("p", { class: "why" }, "Nothing fits."), late ?? "");
    } catch (error) {
      found.replaceChildren(h("p", { class: "why" }, error.message));
    }
  };
  return h("section", { class: "card", id: "search" }, h("h2", {}, "Search"),
    h("form", { class: "search", onsubmit: look }, input, h("button", { type: "submit" }, "Search")), found);
}
