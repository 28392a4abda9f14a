// What changes a conversation: each shows its price before it is done, and most can wait until the prompt is rewritten anyway.

import { h, count } from "./dom.js";
import { post, remove, of } from "./api.js";
import { curate } from "./curate.js";

export const seconds = (n) => (typeof n === "number" ? `${n < 10 ? n.toFixed(1) : count(n)} s` : "not measured yet");

function price(answer) {
  const list = h("dl", { class: "price" });
  const line = (what, value) => value !== undefined && value !== null && list.append(h("dt", {}, what), h("dd", {}, value));
  const about = answer.counted === false ? "about " : "";
  line("the prompt now", `${about}${count(answer.before)} tokens`);
  line("the prompt then", `${about}${count(answer.after)} tokens`);
  line("evaluated again with the next request", `${about}${count(answer.evaluated_again)} tokens`);
  line("that takes about", answer.evaluated_again === 0 ? "no time" : seconds(answer.seconds));
  line("to write the brief, the model reads", answer.brief_reads > 0 ? `${count(answer.brief_reads)} tokens` : null);
  const brief = answer.brief && h("details", { open: true }, h("summary", {}, answer.written_by_a_model ? "The brief, as the model wrote it" : "The brief"), h("pre", {}, answer.brief));
  return [list, brief, answer.note && h("p", { class: "why" }, answer.note), answer.when === "next_break" && h("p", { class: "why" }, "It waits until the prompt is rewritten anyway.")];
}

// Asks the price, shows it, and does it when told to. `fields` are inputs whose values go along; `waits`: it can be left for the
// next break; `send`: how it is asked for; `first`: a label and values for a closer price that takes the model's time.
export function ask(title, path, values, { fields = [], verb = "Do it", explain = "", waits = true, needs = false, send = post, first, changed }) {
  const shown = h("div", { "aria-live": "polite", class: "quote" }, h("p", { class: "soft" }, needs ? "the price comes with the text" : "asking the price …"));
  const go = h("button", { class: "btn primary", type: "submit", disabled: true }, verb);
  const inputs = fields.map(([name, label, kind, value]) => {
    const input = h(kind, { name, oninput: later });
    input.value = value ?? "";
    return [name, input, h("label", {}, label, input)];
  });
  const radio = (value, label, checked) => {
    const input = h("input", { type: "radio", name: "when", value, onchange: quote });
    input.checked = checked;
    return h("label", { class: "check" }, input, label);
  };
  const when = waits && h("fieldset", { class: "when" }, h("legend", {}, "When"),
    radio("now", "with the next request", true), radio("next_break", "once the prompt is rewritten anyway: no price of its own", false));
  // The answers may come in another order than the questions.
  let asked = 0;
  // The price follows what is typed, once the typing pauses.
  let pause = 0;
  function later() {
    clearTimeout(pause);
    go.disabled = true;
    // What is under way is the price of something else.
    asked += 1;
    shown.replaceChildren(h("p", { class: "soft" }, "the price comes with the text"));
    pause = setTimeout(quote, 400);
  }
  const all = () => ({
    ...values, ...(when ? { when: dialog.querySelector("[name=when]:checked").value } : {}),
    ...Object.fromEntries(inputs.map(([name, input]) => [name, input.value]).filter(([, text]) => text.trim())),
  });
  const dialog = h("dialog", { "aria-labelledby": "ask-title", onclose: () => dialog.remove() },
    h("form", { method: "dialog", onsubmit: async (e) => {
      e.preventDefault();
      go.disabled = true;
      shown.replaceChildren(h("p", { class: "soft" }, "at work …"));
      try {
        await send(path, all());
        dialog.close();
        await changed();
      } catch (problem) {
        shown.replaceChildren(h("p", { class: "wrong" }, problem.message));
      }
    } },
    h("h1", { id: "ask-title" }, title), explain && h("p", { class: "why" }, explain), inputs.map(([, , label]) => label), when, shown,
    h("div", { class: "buttons" }, button("Leave it", () => dialog.close()), first && button(first.label, () => quote(first.values)), go)));
  document.body.append(dialog);
  dialog.showModal();
  async function quote(more) {
    if (needs && inputs.every(([, input]) => !input.value.trim())) return;
    const mine = ++asked;
    const closer = first && more === first.values;
    go.disabled = true;
    if (closer) shown.replaceChildren(h("p", { class: "soft" }, first.waits));
    try {
      const answer = await send(path, { ...all(), ...(closer ? more : {}), dry_run: true });
      if (mine !== asked) return;
      shown.replaceChildren(...price(answer).filter(Boolean));
      go.disabled = false;
    } catch (problem) {
      if (mine === asked) shown.replaceChildren(h("p", { class: "wrong" }, problem.message));
    }
  }
  quote();
}

export const button = (label, act) => h("button", { class: "btn", type: "button", onclick: act }, label);

export function actions(seen, changed) {
  const path = (what) => of(seen.id, `/${what}`);
  return h("div", { class: "actions" },
    button("Fold now…", () => ask("Fold now", path("compact"), {}, {
      fields: [["focus", "What the brief should keep above all (optional)", "input"]], verb: "Fold", changed,
      explain: "Older messages become a brief. Their originals stay, word for word. What waits is the focus, for the next fold.",
      first: { label: "Read the brief first", values: { write_brief: true }, waits: "the model writes the brief …" },
    })),
    seen.fold && button("Edit the brief…", () => ask("Edit the brief", path("brief"), {}, {
      fields: [["text", "The brief, as the model reads it", "textarea", seen.fold.brief]], verb: "Save", changed,
    })),
    seen.rewrites.length > 0 && button("Undo last…", () => ask("Undo the last rewrite", path("undo"), {}, {
      verb: "Undo", changed, waits: false, explain: "The model sees the conversation as before the last rewrite. Undo again takes that back.",
    })),
    button("Build new…", () => curate(seen.id, seen.model)));
}

// What is pinned, what waits, and whether anything is rewritten.
export function standing(id, pins, changed) {
  const line = (pin) => h("li", {},
    h("span", { class: "pin" }, pin.text || `message ${pin.message}`),
    h("span", { class: "soft" }, [pin.message === null ? null : `message ${pin.message}`, `${count(pin.tokens)} tokens`,
      { brief: "in front of the brief", history: "where it was said", waits: "waits for the next rewrite" }[pin.stands], pin.match && `by the pattern ${pin.match}`, pin.rule && `rule ${pin.rule} of this project`].filter(Boolean).join(" · ")),
    pin.pin !== null && h("div", { class: "buttons" }, button("Unpin…", () => ask(`Unpin ${pin.pin}`, of(id, `/pins/${pin.pin}`), {}, {
      verb: "Unpin", changed, send: remove, explain: "It no longer holds through folds. Where it was said, it stays.",
    }))));
  const words = { restore: "restore", clear: "clear", evict: "preview", brief: "another brief", focus: "a focus for the next fold" };
  const waiting = pins.waiting.map((wish) => Object.entries(wish)[0]).map(([kind, what]) => h("li", {}, words[kind] ?? kind, typeof what === "number" ? ` · message ${what}` : ""));
  const toggle = button(pins.paused ? "Resume rewriting" : "Stop rewriting", async (e) => {
    e.target.disabled = true;
    await post(of(id, "/rewriting"), { on: pins.paused });
    await changed();
  });
  return h("section", { class: "card", id: "pins" }, h("h2", {}, "Pinned ", h("small", {}, pins.tokens ? `· ${count(pins.tokens)} of at most ${count(pins.most)} tokens` : "· holds through every fold")),
    pins.pins.length ? h("ul", { class: "plain" }, pins.pins.map(line)) : h("p", { class: "why" }, "Nothing. Pin a message from the history, or a text of your own."),
    waiting.length > 0 && [h("h2", {}, "Waits for the next rewrite"), h("ul", { class: "plain", id: "waiting" }, waiting)],
    pins.paused && h("p", { class: "wrong" }, "Nothing is rewritten: what no longer fits is refused."),
    h("div", { class: "buttons" },
      waiting.length > 0 && button("Take back what waits", async () => { await remove(of(id, "/waiting"), {}); await changed(); }),
      toggle,
      button("Pin a text…", () => ask("Pin a text", of(id, "/pins"), {}, {
        fields: [["text", "What the model should read through every fold, word for word", "textarea"]], verb: "Pin", changed, needs: true,
      }))));
}

// What can be done with one message.
export function steps(id, message, pins, changed) {
  const at = message.at;
  const brief = message.edits.find((edit) => edit.kind === "folded");
  const cut = !brief && message.edits.length > 0;
  const whole = message.edits.length === 0 && message.role === "tool";
  const pinned = pins.pins.find((pin) => pin.pin !== null && pin.message === at);
  const list = [
    cut && button("Restore…", () => ask(`Restore message ${at}`, of(id, "/restore"), { message: at }, {
      verb: "Restore", changed, explain: "The model sees it in full again.",
    })),
    whole && button("Preview…", () => ask(`Preview message ${at}`, of(id, "/evict"), { message: at }, {
      verb: "Evict", changed, explain: "The lines that matter stay; the original can be recalled.",
    })),
    whole && button("Clear…", () => ask(`Clear message ${at}`, of(id, "/clear"), { message: at }, {
      verb: "Clear", changed, explain: "A placeholder takes its place; the original stays, and the model can recall it.",
    })),
    !pinned && button("Pin…", () => ask(`Pin message ${at}`, of(id, "/pins"), { message: at }, {
      verb: "Pin", changed, explain: "It stays in the prompt through every fold, with the whole step that it belongs to.",
    })),
    brief && button("Edit the brief…", () => ask("Edit the brief", of(id, "/brief"), {}, {
      fields: [["text", "The brief, as the model reads it", "textarea", brief.text]], verb: "Save", changed,
    })),
  ].filter(Boolean);
  return list.length > 0 && h("div", { class: "buttons" }, list);
}
