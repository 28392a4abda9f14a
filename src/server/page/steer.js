// What changes a conversation: each shows its price before it is done.

import { h, count } from "./dom.js";
import { post, of } from "./api.js";

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
    })));
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
