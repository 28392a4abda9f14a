// A small chat: a new one, or one that goes on with a conversation that was built here. What is said goes through windowsill as any client's
// requests do, and is recorded as a conversation of its own. A reload keeps it (in this tab alone).

import { html, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";
import { talk } from "./api.js";
import { Button } from "./use.js";
import { count, model as shortened } from "./format.js";
import { Markdown } from "./markdown.js";

const KEY = "windowsill-chat";
// Messages that stand on the page; the model gets all of them.
const SHOWN = 40;
const WHO = { user: "you", assistant: "assistant", tool: "result", system: "system", developer: "developer" };

const empty = { messages: [], model: null, notes: [], id: null };
let held = null;
function load() {
  if (!held) {
    try { held = JSON.parse(sessionStorage.getItem(KEY)) ?? empty; } catch { held = empty; }
  }
  return held;
}
function keep(next) {
  held = next;
  // One that is too large for the tab's storage lasts until a reload.
  try { sessionStorage.setItem(KEY, JSON.stringify(next)); } catch { sessionStorage.removeItem(KEY); }
}

// Goes on with these messages. `notes` say what is missing.
export function begin(messages, model, notes = []) {
  keep({ messages: [...messages], model, notes, id: null });
  location.hash = "#/chat";
}

function words(message) {
  const parts = Array.isArray(message.content) ? message.content.map((part) => part.text ?? "(media)").join("\n") : message.content ?? "";
  const calls = (message.tool_calls ?? []).map((call) => `${call.function?.name} ${call.function?.arguments}`).join("\n");
  return [parts, calls].filter(Boolean).join("\n") || "(empty)";
}

function Say({ role, text, thoughts }) {
  const plain = role === "tool" ? html`<pre tabindex="0">${text.slice(0, 4000)}</pre>` : role === "assistant" ? html`<${Markdown} text=${text} />` : html`<p>${text.slice(0, 20_000)}</p>`;
  return html`<div class=${`say ${role}`}><b>${WHO[role] ?? role}</b>${thoughts && html`<details class="thoughts"><summary>Reasoning</summary><p>${thoughts}</p></details>`}${plain}</div>`;
}

export function Chat({ servers }) {
  const [talked, set] = useState(load);
  const [text, write] = useState("");
  const [growing, grow] = useState(null);
  const [said, say] = useState(null);
  const list = useRef(null);
  const leave = useRef(null);
  const models = (servers?.models ?? []).filter((m) => !m.error && m.model);
  const model = talked.model ?? models[0]?.model ?? "";
  const update = (next) => { keep(next); set(next); };
  useLayoutEffect(() => { if (list.current) list.current.scrollTop = list.current.scrollHeight; }, [talked, growing]);
  useEffect(() => () => leave.current?.abort(), []);
  const send = async (e) => {
    e?.preventDefault();
    const asked = text.trim();
    if (!asked || growing || !model) return;
    const before = talked;
    const messages = [...talked.messages, { role: "user", content: asked }];
    update({ ...talked, model, messages });
    write("");
    say(null);
    grow({ text: "", thoughts: "" });
    leave.current = new AbortController();
    try {
      const answer = await talk({ model, messages }, (soFar, thoughts) => grow({ text: soFar, thoughts }), leave.current.signal);
      update({ ...talked, model, id: answer.id ?? talked.id, messages: [...messages, { ...answer.message, ...(answer.thoughts ? { reasoning_content: answer.thoughts } : {}) }] });
      say({ usage: answer.usage, id: answer.id });
    } catch (problem) {
      // It was not said.
      update(before);
      write(asked);
      say({ problem: leave.current.signal.aborted ? new Error("You stopped it before the model began.") : problem });
    }
    grow(null);
  };
  // Enter sends, as everywhere; Shift+Enter makes a new line. Whoever composes a character with Enter does not send.
  const key = (e) => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) send(e); };
  const from = Math.max(0, talked.messages.length - SHOWN);
  return html`<section class="card chat"><div class="title"><h1>${talked.messages.length ? "Chat" : "New chat"}</h1>
      <label class="soft">Model <select value=${model} onchange=${(e) => update({ ...talked, model: e.target.value })}>${[...new Set([model, ...models.map((m) => m.model)])].filter(Boolean).map((name) => html`<option key=${name} value=${name}>${shortened(name)}</option>`)}</select></label>
      <div class="actions">${talked.messages.length > 0 && html`<${Button} onclick=${() => { update({ ...empty, model }); say(null); }}>New chat<//>`}</div></div>
    ${talked.notes.length > 0 && html`<p class="why" id="notes">${talked.notes.join(" · ")}</p>`}
    <div class="talk" id="talk" ref=${list} tabindex="0" role="log" aria-label="The conversation">
      ${from > 0 && html`<p class="soft">${count(from)} earlier messages are sent along.</p>`}
      ${talked.messages.slice(from).map((m, n) => html`<${Say} key=${from + n} role=${m.role} text=${words(m)} thoughts=${m.reasoning_content} />`)}
      ${growing && (growing.text || growing.thoughts) && html`<${Say} key=${talked.messages.length} role="assistant" text=${growing.text} thoughts=${growing.thoughts} />`}
      ${!talked.messages.length && html`<p class="soft">Say something: the chat goes through windowsill, and its conversation appears in the list. To go on with an older one, open it and choose “Build new…”.</p>`}</div>
    <form class="sayform" onsubmit=${send}><label>Say something<textarea name="say" rows="3" value=${text} oninput=${(e) => write(e.target.value)} onkeydown=${key}></textarea></label>
      <div class="buttons"><span class="soft">Enter sends, Shift+Enter makes a new line.</span>${growing ? html`<${Button} onclick=${() => leave.current?.abort()}>Stop<//>` : html`<button class="btn primary" type="submit" disabled=${!model}>Send</button>`}</div></form>
    <p class="why" aria-live="polite">${growing ? (growing.text ? "the model writes …" : "the model reads …") : said?.problem ? html`<span class="wrong">${said.problem.message}</span>`
      : said ? html`${said.usage ? `${count(said.usage.prompt_tokens)} tokens in the prompt, ${count(said.usage.completion_tokens)} written. ` : ""}${said.id && html`<a href=${`#/c/${encodeURIComponent(said.id)}`}>See what fills its window</a>`}` : ""}</p></section>`;
}
