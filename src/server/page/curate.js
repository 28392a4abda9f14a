// A new conversation from turns and steps of an old one: as a file of messages for a client, or to go on with on this page.

import { h, count } from "./dom.js";
import { get, post, of } from "./api.js";
import { begin } from "./chat.js";

// Turns that a person sees in the dialog: nobody reads thousands there.
const LISTED = 300;

// Rows of these, with those of their steps.
const ROWS = 1000;

// "3-7,12,14.2" as turns, and steps as text; null for anything else.
export function numbers(text) {
  const out = new Set();
  for (const part of text.split(",")) {
    const step = /^\s*(\d{1,6}\.\d{1,6})\s*$/.exec(part);
    if (step) {
      out.add(step[1]);
      continue;
    }
    const found = /^\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?$/.exec(part);
    if (!found) return null;
    for (let n = Number(found[1]); n <= Number(found[2] ?? found[1]); n++) out.add(n);
  }
  return [...out];
}

// A turn is a number, a step is text: "4.2".
const named = (text) => (/^\d+$/.test(text) ? Number(text) : text);

// Numbers as a person writes them.
export function ranges(all) {
  const out = [];
  for (const n of [...all].filter(Number.isInteger).sort((a, b) => a - b)) {
    const last = out.at(-1);
    if (last && last[1] === n - 1) last[1] = n;
    else out.push([n, n]);
  }
  const steps = [...all].filter((n) => !Number.isInteger(n));
  return [...out.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)), ...steps].join(", ");
}

function save(messages) {
  const file = URL.createObjectURL(new Blob([JSON.stringify({ messages }, null, 2)], { type: "application/json" }));
  h("a", { href: file, download: "messages.json" }).click();
  setTimeout(() => URL.revokeObjectURL(file), 10_000);
}

export async function curate(id, model) {
  const said = h("div", { "aria-live": "polite" });
  const input = h("input", { name: "turns", placeholder: "3-7, 12, 14.2", autocomplete: "off", oninput: tick });
  const brief = h("input", { name: "brief", type: "checkbox" });
  const list = h("div", { class: "segments", tabindex: 0, role: "region", "aria-label": "Turns" }, h("p", { class: "soft" }, "reading the turns …"));
  const briefLabel = h("label", { class: "check", hidden: true }, brief, "with the brief");
  function tick() {
    const chosen = numbers(input.value) ?? [];
    for (const box of list.querySelectorAll("input")) box.checked = chosen.includes(named(box.value));
  }
  const chosen = () => ranges([...list.querySelectorAll("input:checked")].map((box) => named(box.value)));
  async function build() {
    const turns = input.value.trim() ? numbers(input.value) : [];
    if (!turns) throw new Error("Write numbers and ranges, such as 3-7, 12, 14.2.");
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
      h("p", { class: "why" }, "A turn is what a person asked with all that follows; its steps are the model's messages, each with its calls and results, and step 0 is the question. This conversation stays as it is."),
      h("label", {}, "Turns", input), briefLabel, list, said,
      h("div", { class: "buttons" }, h("button", { class: "btn", type: "button", onclick: () => dialog.close() }, "Close"),
        h("button", { class: "btn", type: "submit" }, "Download messages.json"), h("button", { class: "btn primary", type: "button", onclick: go }, "Continue here"))));
  document.body.append(dialog);
  dialog.showModal();
  try {
    const segments = await get(of(id, "/segments"));
    briefLabel.hidden = segments.briefs.length === 0;
    const box = (name, what) => h("input", { type: "checkbox", value: name, "aria-label": `${what} ${name}`, onchange: () => { input.value = chosen(); } });
    const row = (name, what, part, more) => h("tr", {}, h("td", {}, box(name, what)), h("td", { class: "num" }, name), h("td", {}, part.words), h("td", { class: "num" }, count(part.tokens)), h("td", { class: "soft" }, more));
    // A turn of one step is that step.
    const rows = (turn) => [row(turn.turn, "turn", turn, turn.folded ? "in the brief" : ""), ...(turn.steps.length > 2 ? turn.steps.map((step) => row(step.step, "step", step, "")) : [])];
    list.replaceChildren(h("table", {}, h("tbody", {}, segments.turns.slice(-LISTED).flatMap(rows).slice(-ROWS))));
  } catch (problem) {
    list.replaceChildren(h("p", { class: "wrong" }, problem.message));
  }
}
