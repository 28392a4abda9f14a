// What changes a conversation: each shows its price before it is done, and most can wait until the prompt is rewritten anyway.

import { html, useEffect, useRef, useState } from "./lib.js";
import { post, remove, of } from "./api.js";
import { Button, Card, Dialog, Wrong, open } from "./use.js";
import { count, seconds } from "./format.js";
import { Curate } from "./curate.js";

function Price({ answer }) {
  const about = answer.counted === false ? "about " : "";
  // What nobody counted, or the server may have lost meanwhile.
  const again = answer.counted === false || answer.cache === "unsure" ? "about " : "";
  const reads = answer.brief_reads > 0;
  const lines = [
    ["the prompt now", `${about}${count(answer.before)} tokens`],
    ["the prompt then", `${about}${count(answer.after)} tokens`],
    reads && ["to write the brief, the model reads", `${count(answer.brief_reads)} tokens`],
    reads && answer.brief_seconds !== undefined && ["writing the brief takes about", answer.brief_seconds === null ? "not measured yet" : seconds(answer.brief_seconds)],
    ["evaluated again with the next request", `${again}${count(answer.evaluated_again)} tokens`],
    ["that takes about", answer.evaluated_again === 0 ? "no time" : seconds(answer.seconds)],
  ];
  return html`${answer.takes_back && html`<p class="why" id="takes-back">Takes back ${answer.takes_back}.</p>`}<dl class="price">${lines.filter(Boolean).map(([what, value]) => html`<dt key=${what}>${what}</dt><dd>${value}</dd>`)}</dl>
    ${answer.brief && html`<details open><summary>${answer.written_by_a_model ? "The brief, as the model wrote it" : "The brief, made without a model"}</summary><pre tabindex="0">${answer.brief}</pre></details>`}
    ${answer.note && html`<p class="why">${answer.note}</p>`}
    ${answer.when === "next_break" && html`<p class="why">It waits, and costs nothing of its own.</p>`}`;
}

// Seconds that something has taken so far.
function Working({ what }) {
  const [begun] = useState(Date.now());
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  const passed = Math.floor((Date.now() - begun) / 1000);
  return html`<p class="soft working"><progress aria-label=${what}></progress> ${what} …${passed > 1 ? ` ${passed} s` : ""}</p>`;
}

// Asks the price, shows it, and does it when told to. `fields` are inputs whose values go along; `waits`: it can be left for the
// next break; `send`: how it is asked for; `first`: a label and values for a closer price that takes the model's time; `check`: a box whose
// value goes along.
function Ask({ title, path, values, fields = [], check, verb = "Do it", explain = "", waits = "rewrite", needs = false, send = post, first, changed }) {
  const [texts, write] = useState(() => Object.fromEntries(fields.map(([name, , , value]) => [name, value ?? ""])));
  const [when, wait] = useState("now");
  const [checked, tick] = useState(false);
  const [shown, show] = useState(needs ? { later: true } : { asking: "asking the price" });
  const form = useRef(null);
  const leave = useRef(new AbortController());
  const working = useRef(false);
  const all = (more) => ({
    ...values, ...(waits ? { when } : {}), ...(check && checked ? { [check[0]]: true } : {}),
    ...Object.fromEntries(Object.entries(texts).filter(([, text]) => text.trim())), ...more,
  });
  const quote = async (more, asking = "asking the price") => {
    // What is under way is the price of something else.
    leave.current.abort();
    if (needs && fields.every(([name, , , value]) => texts[name].trim() === (value ?? "").trim())) return show({ later: true });
    const mine = (leave.current = new AbortController());
    show({ asking });
    try {
      const answer = await send(path, all({ ...more, dry_run: true }), mine.signal);
      if (!mine.signal.aborted) show({ answer });
    } catch (error) {
      if (!mine.signal.aborted) show({ error });
    }
  };
  // The price follows what is typed, once the typing pauses.
  const typed = JSON.stringify(texts);
  const asked = useRef(null);
  useEffect(() => {
    const first = asked.current === null;
    if (asked.current === typed + when) return undefined;
    asked.current = typed + when;
    if (first) { quote(); return undefined; }
    leave.current.abort();
    show({ later: true });
    const pause = setTimeout(quote, 400);
    return () => clearTimeout(pause);
  }, [typed, when]);
  const act = async (e) => {
    e.preventDefault();
    if (!shown.answer) return;
    const mine = (leave.current = new AbortController());
    working.current = true;
    show({ asking: "at work" });
    try {
      await send(path, all(), mine.signal);
      form.current?.closest("dialog").close();
      await changed();
    } catch (error) {
      if (!mine.signal.aborted) show({ error });
    }
    working.current = false;
  };
  // Closing it takes back what is under way: the server stops when nobody waits for the answer.
  const leaves = () => { leave.current.abort(); if (working.current) changed(); };
  const input = ([name, label, kind]) => html`<label key=${name}>${label}${kind === "textarea"
    ? html`<textarea name=${name} value=${texts[name]} oninput=${(e) => write({ ...texts, [name]: e.target.value })}></textarea>`
    : html`<input name=${name} value=${texts[name]} oninput=${(e) => write({ ...texts, [name]: e.target.value })} />`}</label>`;
  const radio = (value, label) => html`<label class="check"><input type="radio" name="when" value=${value} checked=${when === value} onchange=${() => wait(value)} />${label}</label>`;
  return html`<${Dialog} name="ask-title" onclose=${leaves}><form method="dialog" onsubmit=${act} ref=${form}>
    <h1 id="ask-title">${title}</h1>${explain && html`<p class="why">${explain}</p>`}
    ${fields.map(input)}
    ${check && html`<label class="check"><input type="checkbox" name=${check[0]} checked=${checked} onchange=${(e) => tick(e.target.checked)} />${check[1]}</label>`}
    ${waits && html`<fieldset class="when"><legend>When</legend>${radio("now", "with the next request")}${radio("next_break", `with the next ${waits}, at no extra cost`)}</fieldset>`}
    <div class="quote" aria-live="polite">${shown.asking ? html`<${Working} what=${shown.asking} />` : shown.later ? html`<p class="soft">the price comes once you write</p>`
      : shown.error ? html`<p class="wrong">${shown.error.message}</p>` : html`<${Price} answer=${shown.answer} />`}</div>
    <div class="buttons"><${Button} onclick=${(e) => e.target.closest("dialog").close()}>Cancel<//>
      ${first && shown.answer?.brief_reads > 0 && html`<${Button} onclick=${() => quote(first.values, first.waits)}>${first.label}<//>`}
      <button class="btn primary" type="submit" disabled=${!shown.answer}>${verb}</button></div></form><//>`;
}

const ask = (title, path, values, more) => open(html`<${Ask} key=${`${title} ${path}`} title=${title} path=${path} values=${values} ...${more} />`);

const pinRule = (id, changed) => ask("Pin a rule", of(id, "/pins"), {}, {
  fields: [["text", "What the model should read through every fold, word for word", "textarea"]], verb: "Pin", changed, needs: true,
  check: ["always", "in every conversation of this project, from now on"],
});
const editBrief = (id, brief, changed) => ask("Edit the brief", of(id, "/brief"), {}, {
  fields: [["text", "The brief, as the model reads it", "textarea", brief]], verb: "Save", changed, needs: true,
});

export function Actions({ seen, changed, sent }) {
  const path = (what) => of(seen.id, `/${what}`);
  const fold = () => ask("Fold now", path("compact"), {}, {
    fields: [["focus", "What the brief should keep above all (optional)", "input"]], verb: "Fold", changed, waits: "fold",
    explain: "Older messages become a brief. Their originals stay, word for word. If it waits, only the focus waits.",
    first: { label: "Read the brief first", values: { write_brief: true }, waits: "the model writes the brief" },
  });
  const undo = () => ask("Undo the last change", path("undo"), {}, {
    verb: "Undo", changed, waits: false, explain: "The model sees the conversation as before it. What is pinned stays pinned. Undo again takes back the change before that.",
  });
  return html`<div class="actions"><${Button} onclick=${() => pinRule(seen.id, changed)}>Pin a rule…<//><${Button} onclick=${fold}>Fold now…<//>
    ${seen.fold && html`<${Button} onclick=${() => editBrief(seen.id, seen.fold.brief, changed)}>Edit the brief…<//>`}
    ${(seen.rewrites.length > 0 || seen.did.recalled_ahead > 0) && html`<${Button} onclick=${undo}>Undo last…<//>`}
    <${Button} onclick=${() => open(html`<${Curate} id=${seen.id} model=${seen.model} />`)}>Build new…<//><${Button} onclick=${sent}>As sent…<//></div>`;
}

const STANDS = { brief: "in front of the brief", history: "where it was said", waits: "waits for the next rewrite" };
const WISHES = { restore: "restore", clear: "clear", evict: "preview", brief: "another brief", focus: "a focus for the next fold" };

// What is pinned, what waits, and whether anything is rewritten.
export function Pinned({ id, pins, error, changed }) {
  const [busy, work] = useState(false);
  if (!pins) return html`<${Card} title="Pinned">${error ? html`<${Wrong} error=${error} />` : html`<p class="soft">reading …</p>`}<//>`;
  const unpin = (pin) => ask(`Unpin ${pin.pin}`, of(id, `/pins/${pin.pin}`), {}, {
    verb: "Unpin", changed, send: remove, explain: "It no longer holds through folds. Where it was said, it stays.",
  });
  const line = (pin, n) => html`<li key=${pin.pin ?? `r${n}`}><span class="pin" tabindex="0">${pin.text || `message ${pin.message}`}</span>
    <span class="soft">${[pin.message === null ? null : `said in message ${pin.message}`, `about ${count(pin.tokens)} tokens`, STANDS[pin.stands], pin.match && `by the pattern ${pin.match}`, pin.rule && `rule ${pin.rule} of this project`].filter(Boolean).join(" · ")}</span>
    ${pin.pin !== null && html`<div class="buttons"><${Button} onclick=${() => unpin(pin)}>Unpin…<//></div>`}</li>`;
  const waiting = pins.waiting.map((wish) => Object.entries(wish)[0]);
  const doing = (what) => async () => {
    work(true);
    try { await what(); await changed(); } finally { work(false); }
  };
  return html`<${Card} id="pins" title="Pinned" small=${pins.tokens ? `about ${count(pins.tokens)} of at most ${count(pins.most)} tokens` : "holds through every fold"}>
    ${pins.pins.length ? html`<ul class="plain">${pins.pins.map(line)}</ul>` : html`<p class="why">Nothing. Pin a message from the history, or a rule of your own.</p>`}
    ${waiting.length > 0 && html`<h2>What waits</h2><ul class="plain" id="waiting">${waiting.map(([kind, what]) => html`<li key=${`${kind} ${what}`}>${WISHES[kind] ?? kind}${typeof what === "number" ? ` · message ${what}` : ""}</li>`)}</ul>`}
    ${pins.paused && html`<p class="wrong">Nothing is rewritten: what no longer fits is refused.</p>`}
    <div class="buttons">${waiting.length > 0 && html`<${Button} disabled=${busy} onclick=${doing(() => remove(of(id, "/waiting"), {}))}>Take back what waits<//>`}
      <${Button} disabled=${busy} onclick=${doing(() => post(of(id, "/rewriting"), { on: pins.paused }))}>${pins.paused ? "Resume rewriting" : "Stop rewriting"}<//></div><//>`;
}

// What can be done with a message as it stands in a list: a result gives way, and what gave way comes back.
export function ListSteps({ id, message, changed }) {
  const { at, role, became } = message;
  const name = (verb) => `${verb} message ${at}`;
  const step = (verb, path, explain) => html`<button type="button" class="copy" key=${verb} aria-label=${name(verb)} onclick=${() => ask(name(verb), of(id, path), { message: at }, { verb, changed, explain })}>${verb}…</button>`;
  return html`<span class="steps">${role === "tool" && became === "same" && [step("Preview", "/evict", PREVIEWED), " ", step("Clear", "/clear", CLEARED)]}
    ${!["same", "folded", "recalled", "with_brief", "with_pins"].includes(became) && step("Restore", "/restore", RESTORED)}</span>`;
}

const PREVIEWED = "The lines that matter stay; the original can be recalled.";
const CLEARED = "One line takes its place. The original stays, and the model can recall it.";
const RESTORED = "The model sees it in full again.";

// What can be done with one message.
export function Steps({ id, message, pins, changed }) {
  const at = message.at;
  const brief = message.edits.find((edit) => edit.kind === "folded");
  // What came back by itself stands behind a message, which stays as it is.
  const own = message.edits.filter((edit) => !["recalled", "carried"].includes(edit.kind));
  const whole = own.length === 0 && message.role === "tool";
  const pinned = pins.pins.some((pin) => pin.pin !== null && pin.message === at);
  const step = (name, title, path, verb, explain) => html`<${Button} key=${name} onclick=${() => ask(title, of(id, path), { message: at }, { verb, changed, explain })}>${name}<//>`;
  return html`<div class="buttons">
    ${!brief && own.length > 0 && step("Restore…", `Restore message ${at}`, "/restore", "Restore", RESTORED)}
    ${whole && step("Preview…", `Preview message ${at}`, "/evict", "Preview", PREVIEWED)}
    ${whole && step("Clear…", `Clear message ${at}`, "/clear", "Clear", CLEARED)}
    ${!pinned && step("Pin…", `Pin message ${at}`, "/pins", "Pin", "It stays in the prompt through every fold, with the whole step that it belongs to.")}
    ${brief && html`<${Button} onclick=${() => editBrief(id, brief.text, changed)}>Edit the brief…<//>`}</div>`;
}
