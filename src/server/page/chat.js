// A small chat box that goes on with a conversation that was built here. What is said goes through windowsill as any client's
// requests do, and is recorded as a conversation of its own.

import { h, count } from "./dom.js";
import { talk } from "./api.js";

// Messages that stand on the page; the model gets all of them.
const SHOWN = 40;

let held = null;

// Goes on with these messages.
export function begin(messages, model) {
  held = { messages: [...messages], model, id: null };
  location.hash = "#/chat";
}

const WHO = { user: "you", assistant: "assistant", tool: "result", system: "system" };

function words(message) {
  const parts = Array.isArray(message.content) ? message.content.map((part) => part.text ?? "(media)").join("\n") : message.content ?? "";
  const calls = (message.tool_calls ?? []).map((call) => `${call.function?.name} ${call.function?.arguments}`).join("\n");
  return [parts, calls].filter(Boolean).join("\n") || "(empty)";
}

export function chat() {
  if (!held) {
    const node = h("section", { class: "card" }, h("h1", {}, "Nothing to go on with"), h("p", { class: "why" }, "Open a conversation, choose “Build new…”, and continue it here."), h("a", { href: "#/" }, "Overview"));
    return { node, title: "Chat", onEvent: () => false };
  }
  const list = h("div", { class: "talk", id: "talk", tabindex: 0, role: "log", "aria-label": "The conversation" });
  const said = h("p", { class: "why", "aria-live": "polite" });
  const input = h("textarea", { name: "say", required: true, rows: 3 });
  const go = h("button", { class: "btn primary", type: "submit" }, "Send");
  const line = (role, text) => h("div", { class: `say ${role}` }, h("b", {}, WHO[role] ?? role), h("p", {}, text));
  const draw = () => {
    const from = Math.max(0, held.messages.length - SHOWN);
    list.replaceChildren(...[from > 0 && h("p", { class: "soft" }, `${count(from)} earlier messages are sent along.`)].filter(Boolean),
      ...held.messages.slice(from).map((m) => line(m.role, words(m).slice(0, 4000))));
    list.scrollTop = list.scrollHeight;
  };
  const tell = (answer) => {
    held.id = answer.id;
    said.replaceChildren(`${count(answer.usage?.prompt_tokens)} tokens in the prompt, `, `${count(answer.usage?.completion_tokens)} written. `,
      ...(answer.id ? [h("a", { href: `#/c/${encodeURIComponent(answer.id)}` }, "See what fills its window")] : []));
  };
  const node = h("section", { class: "card" }, h("div", { class: "title" }, h("h1", {}, "Go on here"), h("span", { class: "soft" }, held.model)), list,
    h("form", { class: "sayform", onsubmit: async (e) => {
      e.preventDefault();
      const text = input.value.trim();
      if (!text || go.disabled) return;
      go.disabled = true;
      held.messages.push({ role: "user", content: text });
      input.value = "";
      draw();
      said.textContent = "the model writes …";
      const reply = line("assistant", "");
      try {
        const answer = await talk({ model: held.model, messages: held.messages }, (soFar) => {
          if (!reply.isConnected) list.append(reply);
          reply.lastChild.textContent = soFar;
          list.scrollTop = list.scrollHeight;
        });
        held.messages.push(answer.message);
        tell(answer);
      } catch (problem) {
        // It was not said.
        held.messages.pop();
        input.value = text;
        said.replaceChildren(h("span", { class: "wrong" }, problem.message));
      }
      go.disabled = false;
      draw();
    } }, h("label", {}, "Say something", input), h("div", { class: "buttons" }, go)), said);
  return { node, title: "Chat", shown: draw, onEvent: () => false };
}
