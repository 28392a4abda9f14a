// A new conversation from turns of an old one: as a file of messages for a client, or to go on with on this page.

import { h, count } from "./dom.js";
import { get, post, of } from "./api.js";
import { begin } from "./chat.js";

// Turns that a person sees in the dialog: nobody reads thousands there.
const LISTED = 300;

// "3-7,12" as numbers; null for anything else.
export function numbers(text) {
  const out = new Set();
  for (const part of text.split(",")) {
    const found = /^\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?$/.exec(part);
    if (!found) return null;
    for (let n = Number(found[1]); n <= Number(found[2] ?? found[1]); n++) out.add(n);
  }
  return [...out];
}

// Numbers as a person writes them.
export function ranges(all) {
  const out = [];
  for (const n of [...all].sort((a, b) => a - b)) {
    const last = out.at(-1);
    if (last && last[1] === n - 1) last[1] = n;
    else out.push([n, n]);
  }
  return out.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(", ");
}

function save(messages) {
  const file = URL.createObjectURL(new Blob([JSON.stringify({ messages }, null, 2)], { type: "application/json" }));
  h("a", { href: file, download: "messages.json" }).click();
  setTimeout(() => URL.revokeObjectURL(file), 10_000);
}

export async function curate(id, model) {
  const said = h("div", { "aria-live": "polite" });
  const input = h("input", { name: "turns", placeholder: "3-7, 12", autocomplete: "off", oninput: tick });
  const brief = h("input", { name: "brief", type: "checkbox" });
  const list = h("div", { class: "segments", tabindex: 0, role: "region", "aria-label": "Turns" }, h("p", { class: "soft" }, "reading the turns …"));
  const briefLabel = h("label", { class: "check", hidden: true }, brief, "with the brief");
  function tick() {
    const chosen = numbers(input.value) ?? [];
    for (const box of list.querySelectorAll("input")) box.checked = chosen.includes(Number(box.value));
  }
  const chosen = () => ranges([...list.querySelectorAll("input:checked")].map((box) => Number(box.value)));
  async function build() {
    const turns = input.value.trim() ? numbers(input.value) : [];
    if (!turns) throw new Error("Write numbers and ranges, such as 3-7, 12.");
    return post(of(id, "/build"), { turns, briefs: brief.checked ? [1] : [] });
  }
  const act = (done) => async (e) => {
    e.preventDefault();
    try {
      done(await build());
    } catch (problem) {
      said.replaceChildren(h("p", { class: "wrong" }, problem.message));
    }
  };
  const download = act((built) => {
    save(built.messages);
    said.replaceChildren(h("p", { class: "why", id: "built" }, `${count(built.messages.length)} messages, about ${count(built.tokens)} tokens. `, built.notes.join(" · ")));
  });
  const go = act((built) => {
    dialog.close();
    begin(built.messages, model);
  });
  const dialog = h("dialog", { "aria-labelledby": "build-title", onclose: () => dialog.remove() },
    h("form", { method: "dialog", onsubmit: download },
      h("h1", { id: "build-title" }, "Build a new conversation"),
      h("p", { class: "why" }, "Whole turns only, so that no call loses its result. This conversation stays as it is."),
      h("label", {}, "Turns", input), briefLabel, list, said,
      h("div", { class: "buttons" }, h("button", { class: "btn", type: "button", onclick: () => dialog.close() }, "Close"),
        h("button", { class: "btn", type: "submit" }, "Download messages.json"), h("button", { class: "btn primary", type: "button", onclick: go }, "Continue here"))));
  document.body.append(dialog);
  dialog.showModal();
  try {
    const segments = await get(of(id, "/segments"));
    briefLabel.hidden = segments.briefs.length === 0;
    const box = (turn) => h("input", { type: "checkbox", value: turn, "aria-label": `turn ${turn}`, onchange: () => { input.value = chosen(); } });
    list.replaceChildren(h("table", {}, h("tbody", {}, segments.turns.slice(-LISTED).map((turn) => h("tr", {}, h("td", {}, box(turn.turn)), h("td", { class: "num" }, turn.turn),
      h("td", {}, turn.words), h("td", { class: "num" }, count(turn.tokens)), h("td", { class: "soft" }, turn.folded ? "in the brief" : ""))))));
  } catch (problem) {
    list.replaceChildren(h("p", { class: "wrong" }, problem.message));
  }
}
