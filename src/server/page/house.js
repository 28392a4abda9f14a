// Keeping house: one conversation renamed, starred, written down as a file, or deleted.

import { html, useRef, useState } from "./lib.js";
import { put, remove, of, text } from "./api.js";
import { Button, Dialog, open, save } from "./use.js";
import { count, plural } from "./format.js";

const closes = (e) => e.target.closest("dialog").close();

// A dialog that does one thing, and says why not where that fails.
function Do({ title, verb, act, children }) {
  const [said, say] = useState(null);
  const form = useRef(null);
  const done = async (e) => {
    e.preventDefault();
    say({ busy: true });
    try {
      await act(form.current);
      form.current?.closest("dialog").close();
    } catch (problem) {
      say({ problem });
    }
  };
  return html`<${Dialog} name="house-title"><form method="dialog" ref=${form} onsubmit=${done}><h1 id="house-title">${title}</h1>${children}
    <div aria-live="polite">${said?.problem && html`<p class="wrong">${said.problem.message}</p>`}</div>
    <div class="buttons"><${Button} onclick=${closes}>Cancel<//><button class="btn primary" type="submit" disabled=${said?.busy}>${verb}</button></div></form><//>`;
}

const rename = (seen, changed) => open(html`<${Do} key=${`rename ${seen.id}`} title="Rename the conversation" verb="Rename" act=${async (form) => { await put(of(seen.id, "/title"), { title: form.elements.title.value.trim() }); await changed(); }}>
  <label>Title<input name="title" autocomplete="off" maxlength="200" defaultValue=${seen.title} /></label><p class="why">Without one, it is called after its first words again.</p><//>`);

const deleting = (seen) => open(html`<${Do} key=${`delete ${seen.id}`} title="Delete the conversation" verb="Delete" act=${async () => { await remove(of(seen.id), {}); location.hash = "#/"; }}>
  <p><b>${seen.title || seen.id}</b>: ${plural(seen.messages, "message")} and their originals are deleted for good. Conversations that branched off keep what they share with it.</p><//>`);

const FILES = [["markdown", "md", "Markdown, for people"], ["jsonl", "jsonl", "JSON Lines, for programs"]];
function Export({ seen }) {
  const [said, say] = useState(null);
  const keep = (format, ending) => async () => {
    try {
      const words = await text(of(seen.id, `/export?format=${format}`));
      save(`windowsill-${seen.id}.${ending}`, words);
      say({ done: `${count(words.length)} characters were saved.` });
    } catch (problem) {
      say({ problem });
    }
  };
  return html`<${Dialog} name="export-title"><h1 id="export-title">Export the conversation</h1><p class="why">All of it, as the client has it, with what was folded since.</p>
    <div class="buttons">${FILES.map(([format, ending, name]) => html`<${Button} key=${format} onclick=${keep(format, ending)}>${name}<//>`)}</div>
    <div aria-live="polite" id="exported">${said?.problem ? html`<p class="wrong">${said.problem.message}</p>` : said && html`<p class="why">${said.done}</p>`}</div>
    <div class="buttons"><${Button} onclick=${closes}>Close<//></div><//>`;
}

export function House({ seen, changed }) {
  const [busy, work] = useState(false);
  const star = async () => {
    work(true);
    try { await put(of(seen.id, "/star"), { on: !seen.starred }); await changed(); } finally { work(false); }
  };
  return html`<span class="house" role="group" aria-label="This conversation"><button type="button" class="copy" aria-pressed=${seen.starred ? "true" : "false"} disabled=${busy} onclick=${star} title="Retention leaves what has a star alone">${seen.starred ? "★ Starred" : "☆ Star"}</button>
    <button type="button" class="copy" onclick=${() => rename(seen, changed)}>Rename…</button> <button type="button" class="copy" onclick=${() => open(html`<${Export} seen=${seen} />`)}>Export…</button>
    <button type="button" class="copy" onclick=${() => deleting(seen)}>Delete…</button></span>`;
}
