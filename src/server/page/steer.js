// What changes a conversation: each shows its price before it is done.

import { h, count } from "./dom.js";
import { get, post, of } from "./api.js";

function price(answer) {
  const list = h("dl", { class: "price" });
  const line = (what, value) => value !== undefined && value !== null && list.append(h("dt", {}, what), h("dd", {}, value));
  line("the prompt now", `${count(answer.before)} tokens`);
  line("the prompt then", `${count(answer.after)} tokens`);
  line("evaluated again with the next request", `${count(answer.evaluated_again)} tokens`);
  line("that takes about", typeof answer.seconds === "number" ? `${answer.seconds < 10 ? answer.seconds.toFixed(1) : count(answer.seconds)} s` : "not measured yet");
  line("to write the brief, the model reads", answer.brief_reads > 0 ? `${count(answer.brief_reads)} tokens` : null);
  return list;
}

// Asks the price, shows it, and does it when told to. `fields` are inputs whose values go along.
function ask(title, path, values, { fields = [], verb = "Do it", explain = "", changed }) {
  const shown = h("div", { "aria-live": "polite" }, h("p", { class: "soft" }, "asking the price …"));
  const go = h("button", { class: "btn primary", type: "submit", disabled: true }, verb);
  const inputs = fields.map(([name, label, kind, value]) => {
    const input = h(kind, { name, oninput: later });
    input.value = value ?? "";
    return [name, input, h("label", {}, label, input)];
  });
  // The price follows what is typed, once the typing pauses.
  let pause = 0;
  function later() {
    clearTimeout(pause);
    go.disabled = true;
    pause = setTimeout(quote, 400);
  }
  const all = () => ({ ...values, ...Object.fromEntries(inputs.map(([name, input]) => [name, input.value]).filter(([, text]) => text.trim())) });
  const dialog = h("dialog", { "aria-labelledby": "ask-title", onclose: () => dialog.remove() },
    h("form", { method: "dialog", onsubmit: async (e) => {
      e.preventDefault();
      go.disabled = true;
      shown.replaceChildren(h("p", { class: "soft" }, "at work …"));
      try {
        await post(path, all());
        dialog.close();
        await changed();
      } catch (problem) {
        shown.replaceChildren(h("p", { class: "wrong" }, problem.message));
      }
    } },
    h("h1", { id: "ask-title" }, title), explain && h("p", { class: "why" }, explain), inputs.map(([, , label]) => label), shown,
    h("div", { class: "buttons" }, h("button", { class: "btn", type: "button", onclick: () => dialog.close() }, "Leave it"), go)));
  document.body.append(dialog);
  dialog.showModal();
  async function quote() {
    try {
      const answer = await post(path, { ...all(), dry_run: true });
      shown.replaceChildren(price(answer));
      go.disabled = false;
    } catch (problem) {
      shown.replaceChildren(h("p", { class: "wrong" }, problem.message));
      go.disabled = true;
    }
  }
  quote();
}

const button = (label, act) => h("button", { class: "btn", type: "button", onclick: act }, label);

export function actions(seen, changed) {
  const path = (what) => of(seen.id, `/${what}`);
  return h("div", { class: "actions" },
    button("Fold now…", () => ask("Fold now", path("compact"), {}, {
      fields: [["focus", "What the brief should keep above all (optional)", "input"]], verb: "Fold", changed,
      explain: "Older messages become a brief. Their originals stay, word for word.",
    })),
    seen.rewrites.length > 0 && button("Undo last…", () => ask("Undo the last rewrite", path("undo"), {}, {
      verb: "Undo", changed, explain: "The model sees the conversation as before the last rewrite. Undo again takes that back.",
    })),
    button("Build new…", () => curate(seen.id)));
}

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

// A new conversation from turns of this one, as a file of messages for a client. This one stays as it is.
async function curate(id) {
  const said = h("div", { "aria-live": "polite" });
  const input = h("input", { name: "turns", placeholder: "3-7, 12", autocomplete: "off" });
  const brief = h("input", { name: "brief", type: "checkbox" });
  const go = h("button", { class: "btn primary", type: "submit" }, "Download messages.json");
  const list = h("div", { class: "segments", tabindex: 0, role: "region", "aria-label": "Turns" }, h("p", { class: "soft" }, "reading the turns …"));
  const briefLabel = h("label", { class: "check", hidden: true }, brief, "with the brief");
  const dialog = h("dialog", { "aria-labelledby": "build-title", onclose: () => dialog.remove() },
    h("form", { method: "dialog", onsubmit: async (e) => {
      e.preventDefault();
      const turns = input.value.trim() ? numbers(input.value) : [];
      if (!turns) return said.replaceChildren(h("p", { class: "wrong" }, "Write numbers and ranges, such as 3-7, 12."));
      try {
        const built = await post(of(id, "/build"), { turns, briefs: brief.checked ? [1] : [] });
        const file = URL.createObjectURL(new Blob([JSON.stringify({ messages: built.messages }, null, 2)], { type: "application/json" }));
        h("a", { href: file, download: "messages.json" }).click();
        setTimeout(() => URL.revokeObjectURL(file), 10_000);
        said.replaceChildren(h("p", { class: "why", id: "built" }, `${count(built.messages.length)} messages, about ${count(built.tokens)} tokens. `, built.notes.join(" · ")));
      } catch (problem) {
        said.replaceChildren(h("p", { class: "wrong" }, problem.message));
      }
    } },
    h("h1", { id: "build-title" }, "Build a new conversation"),
    h("p", { class: "why" }, "Whole turns only, so that no call loses its result. This conversation stays as it is."),
    h("label", {}, "Turns", input), briefLabel, list, said,
    h("div", { class: "buttons" }, h("button", { class: "btn", type: "button", onclick: () => dialog.close() }, "Close"), go)));
  document.body.append(dialog);
  dialog.showModal();
  try {
    const segments = await get(of(id, "/segments"));
    briefLabel.hidden = segments.briefs.length === 0;
    // A person reads no thousands of them in a dialog.
    const shown = segments.turns.slice(-300);
    list.replaceChildren(h("table", {}, h("tbody", {}, shown.map((turn) => h("tr", {}, h("td", { class: "num" }, turn.turn),
      h("td", {}, turn.words), h("td", { class: "num" }, count(turn.tokens)), h("td", { class: "soft" }, turn.folded ? "in the brief" : ""))))));
  } catch (problem) {
    list.replaceChildren(h("p", { class: "wrong" }, problem.message));
  }
}

// What can be done with one message.
export function steps(id, message, changed) {
  const at = message.at;
  const brief = message.edits.find((edit) => edit.kind === "folded");
  const cut = !brief && message.edits.length > 0;
  const whole = message.edits.length === 0 && message.role === "tool";
  const list = [
    cut && button("Restore…", () => ask(`Restore message ${at}`, of(id, "/restore"), { message: at }, {
      verb: "Restore", changed, explain: "The model sees it in full again.",
    })),
    whole && button("Clear…", () => ask(`Clear message ${at}`, of(id, "/clear"), { message: at }, {
      verb: "Clear", changed, explain: "A placeholder takes its place; the original stays, and the model can recall it.",
    })),
    brief && button("Edit the brief…", () => ask("Edit the brief", of(id, "/brief"), {}, {
      fields: [["text", "The brief, as the model reads it", "textarea", brief.text]], verb: "Save", changed,
    })),
  ].filter(Boolean);
  return list.length > 0 && h("div", { class: "buttons" }, list);
}
