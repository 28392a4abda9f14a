// A new conversation from turns and steps of an old one: as a file of messages for a client, or to go on with on this page.

import { html, useMemo, useState } from "./lib.js";
import { post, of } from "./api.js";
import { useData, Button, Dialog, Wrong, save } from "./use.js";
import { count, plural } from "./format.js";
import { begin } from "./chat.js";

// Rows that stand in the dialog at once; more come when they are asked for.
const LISTED = 200;

// "3-7,12,14.2" as turns (numbers) and steps (texts); null for anything else.
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

export function Curate({ id, model }) {
  const [segments, error] = useData(of(id, "/segments"));
  const [text, write] = useState("");
  const [brief, take] = useState(false);
  const [listed, more] = useState(LISTED);
  const [said, say] = useState(null);
  const turns = segments?.turns ?? [];
  const chosen = useMemo(() => new Set(text.trim() ? numbers(text) ?? [] : []), [text]);
  const tokens = turns.reduce((sum, turn) => sum + (chosen.has(turn.turn) ? turn.tokens
    : turn.steps.reduce((own, step) => own + (chosen.has(step.step) ? step.tokens : 0), 0)), 0);
  const set = (next) => write(ranges(next));
  const toggle = (turn) => {
    const next = new Set(chosen);
    if (!next.delete(turn)) next.add(turn);
    set(next);
  };
  const act = (done) => async (e) => {
    e.preventDefault();
    const dialog = e.target.closest("dialog");
    try {
      const wanted = text.trim() ? numbers(text) : [];
      if (!wanted) throw new Error("Write numbers and ranges, such as 3-7, 12, 14.2.");
      done(await post(of(id, "/build"), { turns: wanted, briefs: brief ? [1] : [] }), dialog);
    } catch (problem) {
      say({ problem });
    }
  };
  const download = act((built) => {
    save("messages.json", JSON.stringify({ messages: built.messages }, null, 2), "application/json");
    say({ built });
  });
  const go = act((built, dialog) => {
    dialog.close();
    begin(built.messages, model, built.notes);
  });
  // A turn of one step is that step.
  const all = turns.flatMap((turn) => [{ name: turn.turn, what: "turn", part: turn, more: turn.folded ? "in the brief" : turn.partly_folded ? "partly in the brief" : "" },
    ...(turn.steps.length > 2 ? turn.steps.map((step) => ({ name: step.step, what: "step", part: step, more: step.folded ? "in the brief" : "" })) : [])]);
  const from = Math.max(0, all.length - listed);
  const rows = all.slice(from);
  return html`<${Dialog} name="build-title" wide><form method="dialog" onsubmit=${download}>
    <h1 id="build-title">Build a new conversation</h1>
    <p class="why">A turn is what a person asked with all that follows. Its steps are the model's messages, each with its calls and results; step 0 is the question. This conversation stays as it is.</p>
    <label>Turns<input name="turns" placeholder="3-7, 12, 14.2" autocomplete="off" value=${text} oninput=${(e) => write(e.target.value)} /></label>
    <div class="between"><span class="soft" aria-live="polite">${chosen.size ? `${plural(chosen.size, "turn")}, about ${count(tokens)} tokens` : plural(turns.length, "turn")}</span>
      <span><button type="button" class="link" onclick=${() => set(turns.map((turn) => turn.turn))}>Choose all</button> · <button type="button" class="link" onclick=${() => write("")}>none</button></span></div>
    ${segments?.briefs.length > 0 && html`<label class="check"><input name="brief" type="checkbox" checked=${brief} onchange=${(e) => take(e.target.checked)} />with the brief, which stands for the folded turns</label>`}
    <div class="segments" tabindex="0" role="region" aria-label="Turns">${error ? html`<${Wrong} error=${error} />` : !segments ? html`<p class="soft">reading the turns …</p>` : html`
      ${from > 0 && html`<button type="button" class="link" onclick=${() => more(listed + 5 * LISTED)}>Show ${count(from)} earlier rows</button>`}
      <table><thead><tr><th scope="col"></th><th scope="col" class="num">Turn</th><th scope="col">Begins with</th><th scope="col" class="num">Tokens</th><th scope="col"></th></tr></thead>
        <tbody>${rows.map(({ name, what, part, more }) => html`<tr key=${name} class=${`${chosen.has(name) ? "chosen" : ""} ${what}`} onclick=${(e) => { if (e.target.tagName !== "INPUT") toggle(name); }}>
          <td><input type="checkbox" value=${name} aria-label=${`${what} ${name}`} checked=${chosen.has(name)} onchange=${() => toggle(name)} /></td>
          <td class="num">${name}</td><td>${part.words}</td><td class="num" title=${`about ${count(part.tokens)} tokens`}>~${count(part.tokens)}</td><td class="soft">${more}</td></tr>`)}</tbody></table>`}</div>
    <div aria-live="polite">${said?.problem && html`<p class="wrong">${said.problem.message}</p>`}
      ${said?.built && html`<p class="why" id="built">${count(said.built.messages.length)} messages, about ${count(said.built.tokens)} tokens. ${said.built.notes.join(" · ")}</p>`}</div>
    <div class="buttons"><${Button} onclick=${(e) => e.target.closest("dialog").close()}>Close<//><button class="btn" type="submit">Download messages.json</button><button class="btn primary" type="button" onclick=${go}>Continue here</button></div></form><//>`;
}
