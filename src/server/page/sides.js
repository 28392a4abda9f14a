// Both sides of a request: what the client sent beside what went out, with what differs marked, as a chat or as JSON.

import { html, useMemo, useState } from "./lib.js";
import { get, of } from "./api.js";
import { Again } from "./again.js";
import { useData, Button, Copy, Dialog, Wrong, save } from "./use.js";
import { count, plural } from "./format.js";

// Rows that stand in the dialog at once, and characters of one text.
const ROWS = 200;
const SHOWN = 20_000;
const WHO = { user: "you", assistant: "assistant", tool: "result", system: "system", developer: "system" };

const said = (content) => (typeof content === "string" ? content : Array.isArray(content) ? content.map((part) => part.text ?? `(${part.type})`).join("\n") : "");
// A message as people read it.
const words = (m) => [said(m.content), ...(m.tool_calls ?? []).map((c) => `${c.function?.name} ${c.function?.arguments}`)].filter(Boolean).join("\n");

// Rows of both sides: messages that are one stand beside each other. `alike`: the same words.
export function pair({ client, messages, places }) {
  const rows = [];
  let at = 0;
  messages.forEach((sent, n) => {
    const place = places[n];
    if (place === null) { rows.push({ at: null, client: null, sent }); return; }
    for (; at < place; at++) rows.push({ at, client: client[at], sent: null });
    rows.push({ at: place, client: client[place], sent, alike: words(client[place]) === words(sent) });
    at = place + 1;
  });
  for (; at < client.length; at++) rows.push({ at, client: client[at], sent: null });
  return rows;
}

// Lines of a text that the other one has not, as pieces in order: [text, whether it is marked].
function own(lines, others) {
  const out = [];
  for (const line of lines) {
    const marked = !others.has(line.trim());
    const last = out.at(-1);
    if (last && last[1] === marked) last[0] += `\n${line}`;
    else out.push([out.length ? `\n${line}` : line, marked]);
  }
  return out;
}

// Where two texts differ, as pieces of each: by lines, and where there are few, by words between a common beginning and end.
export function differ(a, b) {
  const lines = [a, b].map((text) => text.split("\n"));
  if (lines.some((all) => all.length > 3)) {
    const sets = lines.map((all) => new Set(all.map((line) => line.trim())));
    return [own(lines[0], sets[1]), own(lines[1], sets[0])];
  }
  const [x, y] = [a.split(/(\s+)/), b.split(/(\s+)/)];
  let head = 0;
  while (head < x.length && head < y.length && x[head] === y[head]) head += 1;
  let tail = 0;
  while (tail < x.length - head && tail < y.length - head && x[x.length - 1 - tail] === y[y.length - 1 - tail]) tail += 1;
  const pieces = (all) => [[all.slice(0, head).join(""), false], [all.slice(head, all.length - tail).join(""), true], [all.slice(all.length - tail).join(""), false]];
  return [pieces(x), pieces(y)];
}

const short = (text) => (text.length > SHOWN ? `${text.slice(0, SHOWN)}\n… and ${count(text.length - SHOWN)} characters more` : text);
const Marked = ({ pieces }) => html`<p>${pieces.filter(([text]) => text).slice(0, 2000).map(([text, marked], n) => (marked ? html`<mark key=${n}>${short(text)}</mark>` : short(text)))}</p>`;

function Row({ row }) {
  const { at, client, sent, alike } = row;
  const who = (m) => html`<b>${at === null ? "" : `${at} · `}${WHO[m.role] ?? m.role}</b>`;
  const [left, right] = client && sent && !alike ? differ(words(client), words(sent)) : [null, null];
  return html`<div class=${`pair ${alike ? "alike" : ""}`}>
    <div class=${`say ${client?.role ?? ""}`}>${client ? html`${who(client)}${left ? html`<${Marked} pieces=${left} />` : html`<p>${short(words(client))}</p>`}` : html`<i class="soft">added by windowsill</i>`}</div>
    <div class=${`say ${sent?.role ?? ""}`}>${!sent ? html`<i class="soft">left the prompt</i>` : alike ? html`<i class="soft">as it is</i>` : html`${who(sent)}${right ? html`<${Marked} pieces=${right} />` : html`<p><mark>${short(words(sent))}</mark></p>`}`}</div></div>`;
}

// `messages`: how many messages the request had; without it, the last one.
export function Sides({ id, model, messages }) {
  const some = messages ? `&messages=${messages}` : "";
  const [view, error] = useData(of(id, `/view?client${some}`));
  const [raw, choose] = useState(false);
  const [only, narrow] = useState(false);
  const [listed, more] = useState(ROWS);
  const [problem, say] = useState(null);
  const [again, ask] = useState(false);
  const rows = useMemo(() => (view ? pair(view) : []), [view]);
  const changed = rows.filter((row) => !row.alike).length;
  const wanted = only ? rows.filter((row) => !row.alike) : rows;
  const from = Math.max(0, wanted.length - listed);
  const brief = view?.edits.find((edit) => edit.rule === "fold")?.brief;
  const asked = view && { model, messages: view.messages };
  const curl = () => `curl ${location.origin}/v1/chat/completions -H 'content-type: application/json' -H 'x-windowsill: off' -d @- <<'EOF'\n${JSON.stringify(asked)}\nEOF\n`;
  // What gives the same plan again, for whoever looks into it.
  const keep = (replaced) => async () => {
    try {
      save(`windowsill-${id}-request.json`, JSON.stringify(await get(of(id, `/request?${replaced ? "replaced" : "replaced=false"}${some}`)), null, 1), "application/json");
    } catch (e) { say(e); }
  };
  const json = (all) => html`<pre tabindex="0">${short(JSON.stringify(all, null, 2))}</pre>`;
  return html`<${Dialog} name="sent-title" wide="widest"><h1 id="sent-title">${messages ? `The request with ${plural(messages, "message")}` : "The last request"}: received and sent</h1>
    <p class="why">Left, what the client sent; right, what the server got. The system prompt and the tools are not in the record.</p>
    ${(error ?? problem) && html`<${Wrong} error=${error ?? problem} />`}
    ${view && html`<div class="between"><span class="soft" role="status">${changed ? `${plural(changed, "message")} of ${count(rows.length)} not as it came` : "Everything went out as it came."}</span>
        <label class="check"><input type="checkbox" name="only" checked=${only} onchange=${(e) => narrow(e.target.checked)} /> only what differs</label></div>
      <div class="sent" id="sides" tabindex="0" role="region" aria-label="Received and sent">${raw ? html`<div class="pair"><div>${json(view.client)}</div><div>${json(view.messages)}</div></div>`
      : html`${from > 0 && html`<button type="button" class="link" onclick=${() => more(listed + 5 * ROWS)}>Show ${count(from)} earlier messages</button>`}${wanted.slice(from).map((row, n) => html`<${Row} key=${`${row.at} ${from + n}`} row=${row} />`)}`}</div>
      ${again && html`<${Again} id=${id} messages=${messages} brief=${brief} />`}
      <div class="buttons"><${Button} onclick=${() => ask(!again)} aria-expanded=${String(again)}>Try a change…<//><${Button} onclick=${() => choose(!raw)}>${raw ? "As a chat" : "As JSON"}<//><${Copy} text=${() => JSON.stringify(asked, null, 2)} label="Copy as JSON" /><${Copy} text=${curl} label="Copy as curl" />
        <button type="button" class="copy" onclick=${keep(false)}>Save as input</button><button type="button" class="copy" onclick=${keep(true)}>… with texts replaced</button>
        <${Button} onclick=${(e) => e.target.closest("dialog").close()}>Close<//></div>`}<//>`;
}
