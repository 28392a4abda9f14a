// A request is sent again with another brief, focus or line: both answers stand side by side, and nothing of it is kept.

import { html, useState, useEffect, useRef } from "./lib.js";
import { post, of } from "./api.js";
import { Button } from "./use.js";
import { count } from "./format.js";

const WAYS = [["brief", "another brief"], ["focus", "another focus"], ["line", "another line"]];

const said = (m) => (m ? [m.content, ...(m.tool_calls ?? []).map((c) => `${c.function?.name} ${c.function?.arguments}`)].filter((part) => typeof part === "string" && part).join("\n") : "");

function Answer({ title, message, soft }) {
  return html`<div class="say assistant"><b>${title}</b>${message ? html`<p>${said(message) || "(no words)"}</p>` : html`<p class="soft">There is none on record.</p>`}${soft && html`<p class="soft">${soft}</p>`}</div>`;
}

const how = ({ prompt_tokens: read, completion_tokens: wrote, has_head: whole, written_by_a_model: written }) => [
  read !== null && `${count(read)} tokens read, ${count(wrote ?? 0)} written`,
  written && "the brief was written by a model",
  !whole && "without the system prompt and the tools: they are known until windowsill restarts",
].filter(Boolean).join("; ");

// `brief`: the one that stands, if there is one. `messages`: how many messages the request had; without it, the last one.
export function Again({ id, messages, brief }) {
  const [way, choose] = useState(brief ? "brief" : "line");
  const [values, write] = useState({ brief: brief ?? "", focus: "", line: "50" });
  const [shown, show] = useState({});
  const leave = useRef(new AbortController());
  // Closing it takes back what is under way: the server stops when nobody waits for the answer.
  useEffect(() => () => leave.current.abort(), []);
  const stop = () => { leave.current.abort(); show({}); };
  const send = async (e) => {
    e.preventDefault();
    leave.current.abort();
    const mine = (leave.current = new AbortController());
    const value = way === "line" ? Number(values.line) / 100 : values[way];
    show({ asking: true });
    try {
      const answer = await post(of(id, "/again"), { [way]: value, ...(messages ? { messages } : {}) }, mine.signal);
      if (!mine.signal.aborted) show({ answer });
    } catch (error) {
      if (!mine.signal.aborted) show({ error });
    }
  };
  const radio = ([name, label]) => html`<label class="check" key=${name}><input type="radio" name="way" value=${name} checked=${way === name} disabled=${name === "brief" && !brief} onchange=${() => choose(name)} /> ${label}</label>`;
  const input = (e) => write({ ...values, [way]: e.target.value });
  return html`<form class="sayform" id="again" onsubmit=${send}>
    <fieldset class="when"><legend>Send it again with</legend>${WAYS.map(radio)}</fieldset>
    ${way === "brief" ? html`<label>The brief, as the model reads it<textarea name="brief" value=${values.brief} oninput=${input}></textarea></label>`
    : way === "focus" ? html`<label>What the brief should keep above all<input name="focus" value=${values.focus} oninput=${input} /></label>`
    : html`<label>Percent of the window from which the history is folded<input name="line" type="number" min="1" max="100" value=${values.line} oninput=${input} /></label>`}
    <div class="buttons"><span class="soft" role="status">${shown.asking ? "the model answers" : shown.answer ? "The model has answered." : "Nothing of it is kept."}</span>
      ${shown.asking ? html`<${Button} onclick=${stop}>Stop<//>` : html`<button class="btn primary" type="submit" disabled=${!String(values[way]).trim()}>Send again</button>`}</div>
    ${shown.error && html`<p class="wrong" role="alert">${shown.error.message}</p>`}
    ${shown.answer && html`<div class="pair" id="answers"><${Answer} title="The answer on record" message=${shown.answer.recorded} /><${Answer} title="The answer now" message=${shown.answer.answer} soft=${how(shown.answer)} /></div>`}</form>`;
}
