// The client's history beside what the model sees of it. Only the rows in sight exist, and pages of them come as they are
// scrolled to, so that a session of any length opens at once. What was folded is one row, which opens to its messages.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";
import { get, of } from "./api.js";
import { count, plural } from "./format.js";

const ROW = 34;
const PAGE = 100;
const WHO = { user: "you", assistant: "assistant", tool: "result", system: "system" };
const VIEW = {
  preview: "preview", placeholder: "cleared", pointer: "the same text stands elsewhere", restored: "in full again, with a pointer", noted: "as it is, with a line from the watchdog",
  recalled: "with what was recalled", with_brief: "as it is, with the brief behind it", with_pins: "as it is, with what is pinned behind it", cut: "cut to fit", settled: "shortened",
};

// The runs of messages that a fold took out, in order: what it kept stands between them.
function runs(fold) {
  const out = [];
  const kept = new Set(fold?.kept ?? []);
  for (let at = fold?.from ?? 0; at < (fold?.to ?? 0); at++) {
    if (kept.has(at)) continue;
    const last = out.at(-1);
    if (last && last.to === at) last.to = at + 1;
    else out.push({ from: at, to: at + 1 });
  }
  return out;
}

// What is known of a history: its length, its fold, and pages of its messages.
export class Rows {
  constructor(id, changed) {
    this.id = id;
    this.changed = changed;
    this.total = 0;
    this.fold = null;
    this.runs = [];
    // Runs that are open, by their first message.
    this.opened = new Set();
    this.pages = new Map();
    this.waiting = new Set();
  }

  // The end is what people look for first.
  async open(signal) {
    this.take(await get(of(this.id, `/messages?limit=${PAGE}`), signal));
  }

  take(answer) {
    this.pages.set(Math.floor(answer.from / PAGE), answer.messages);
    this.total = answer.total;
    this.fold = answer.fold;
    this.runs = runs(answer.fold);
    this.changed();
  }

  // Asks again for the pages of these rows; the other pages are forgotten, since they may have changed, too.
  async refresh([from, to]) {
    const pages = new Set([this.at(from), this.at(Math.max(from, to - 1))].map((row) => Math.floor((row.message ?? row.run.from) / PAGE)));
    const fresh = await Promise.all([...pages].map((page) => get(of(this.id, `/messages?from=${page * PAGE}&limit=${PAGE}`))));
    this.pages.clear();
    fresh.forEach((answer) => this.take(answer));
  }

  async load(page) {
    if (this.waiting.has(page)) return;
    this.waiting.add(page);
    try {
      this.take(await get(of(this.id, `/messages?from=${page * PAGE}&limit=${PAGE}`)));
    } catch { /* the next scroll asks again */ } finally {
      this.waiting.delete(page);
    }
  }

  // Rows that a run has: its own, and its messages where it is open.
  tall(run) { return 1 + (this.opened.has(run.from) ? run.to - run.from : 0); }

  get length() { return this.runs.reduce((rows, run) => rows + this.tall(run) - (run.to - run.from), this.total); }

  // What stands in a row: a message, or a run of folded ones.
  at(row) {
    let before = 0;
    let message = 0;
    for (const run of this.runs) {
      const start = before + run.from - message;
      if (row < start) break;
      if (row === start) return { run };
      if (row < start + this.tall(run)) return { message: run.from + row - start - 1 };
      before = start + this.tall(run);
      message = run.to;
    }
    return { message: Math.min(message + row - before, Math.max(0, this.total - 1)) };
  }

  // The row of a message; the run that holds it is opened first.
  rowOf(message) {
    const held = this.runs.find((run) => message >= run.from && message < run.to);
    if (held) this.opened.add(held.from);
    let row = message;
    for (const run of this.runs) {
      if (run.to <= message) row += this.tall(run) - (run.to - run.from);
      else if (run.from <= message) row += 1;
    }
    return row;
  }

  line(message) {
    const page = Math.floor(message / PAGE);
    const lines = this.pages.get(page);
    if (!lines) this.load(page);
    return lines?.[message % PAGE];
  }
}

// The messages that fit a filter, in order: read on as they are scrolled to. What is folded stands message by message.
export class Fitting {
  constructor(id, query, changed) {
    Object.assign(this, { id, query, changed, lines: [], next: 0, opened: new Set(), runs: [], fold: null, reading: null });
  }

  async read(from) {
    return get(of(this.id, `/messages?${this.query}&from=${from}&limit=${PAGE}`));
  }

  // Reads on; a part of a long history may hold none that fits.
  more() {
    if (this.next === null) return null;
    const go = async () => {
      try {
        const answer = await this.read(this.next);
        this.lines.push(...answer.messages);
        this.next = answer.next;
      } catch { this.next = null; } finally { this.reading = null; }
      this.changed();
      if (this.lines.length < 30) await this.more();
    };
    this.reading ??= go();
    return this.reading;
  }

  // Asks again for what was read.
  async refresh() {
    if (this.reading) return;
    const most = this.lines.length;
    let [lines, next] = [[], 0];
    do {
      const answer = await this.read(next);
      lines = lines.concat(answer.messages);
      next = answer.next;
    } while (next !== null && lines.length < most);
    Object.assign(this, { lines, next });
    this.changed();
  }

  get length() { return this.lines.length; }

  at(row) {
    if (row >= this.lines.length - 20) this.more();
    return { message: this.lines[Math.min(row, this.lines.length - 1)]?.at ?? 0 };
  }

  rowOf(message) { return Math.max(0, this.lines.findIndex((line) => line.at >= message)); }

  line(message) { return this.lines.find((line) => line.at === message); }

  // What is told of how many there are.
  get told() { return this.next === 0 ? "looking …" : `${plural(this.lines.length, "message")}${this.next === null ? "" : " so far"}`; }
}

// A call as people read it: its tool, and the values of its arguments (the text may be cut anywhere).
export function spoken(call) {
  const found = /^(\S+) \{(.*)$/s.exec(call);
  const values = [...(found?.[2] ?? "").matchAll(/"[^"\\]*"\s*:\s*(?:"((?:[^"\\]|\\.)*)|([^",}\]]+))/g)].map((m) => (m[1] ?? m[2]).replace(/\\[nrt]/g, " ").replace(/\\(.)/g, "$1").trim());
  return values.length ? `${found[1]} ${values.join(" · ")}` : call;
}

function Folded({ run, rows, ...more }) {
  const open = rows.opened.has(run.from);
  const { fold } = rows;
  const first = run === rows.runs[0];
  const brief = first ? (fold.brief ?? "").replace(/^\[[^\]]*\]\s*/, "").replace(/\s+/g, " ") : "";
  return html`<div ...${more} class="row folded" id=${`f${run.from}`}><span class="n">${open ? "▾" : "▸"}</span><span class="who">folded</span>
    <span class="t">${plural(run.to - run.from, "message")}, ${run.from}–${run.to - 1}: ${open ? "shown below" : "click to open"}</span><span class="k"></span>
    <span class="v" title=${first ? brief.slice(0, 600) : ""}>${first ? html`<b>brief of messages ${fold.from}–${rows.runs.at(-1).to - 1} · ${count(fold.brief_tokens)} tokens</b> ${brief.slice(0, 200)}` : "in the brief"}</span></div>`;
}

function Message({ at, message, pinned, ...more }) {
  if (!message) return html`<div ...${more} class="row" id=${`m${at}`}><span class="n">${at}</span><span>…</span></div>`;
  const changed = message.became !== "same" && message.became !== "folded";
  const seen = message.became === "same" ? "as it is" : message.became === "folded" ? "in the brief"
    : html`<b>${VIEW[message.became] ?? message.became}${message.became.startsWith("with_") ? "" : ` · about ${count(message.view_tokens)} tokens`}</b> ${message.seen ?? ""}`;
  const call = spoken(message.calls[0] ?? message.call ?? "");
  return html`<div ...${more} class=${`row ${message.became === "folded" ? "inside" : changed ? "changed" : "same"}`} id=${`m${at}`}><span class="n">${at}</span><span class="who">${WHO[message.role] ?? message.role}</span>
    <span class="t">${pinned && html`<span class="mark">pinned</span>`}${call && html`<code>${call}</code> `}${message.words || (call ? "" : message.media ? "(media)" : "(empty)")}</span>
    <span class="k" title=${`about ${count(message.tokens)} tokens`}>~${count(message.tokens)}</span><span class="v">${seen}</span></div>`;
}

// `rows`: all of it, or what fits a filter. `go`: a message to bring into sight, once for each new object.
export function History({ rows, version, pinned, chosen, choose, go }) {
  const node = useRef(null);
  const [sight, look] = useState([0, 30]);
  const [cursor, move] = useState(-1);
  const length = rows.length;
  const measure = () => {
    const first = Math.max(0, Math.floor(node.current.scrollTop / ROW) - 5);
    look((old) => {
      const next = [first, first + Math.ceil((node.current.clientHeight || 600) / ROW) + 10];
      return old[0] === next[0] && old[1] === next[1] ? old : next;
    });
  };
  // Whoever reads the end goes on reading it when there is more.
  const atEnd = useRef(true);
  useLayoutEffect(() => {
    if (atEnd.current) node.current.scrollTop = length * ROW;
    measure();
  }, [length]);
  // What a filter leaves begins at its beginning, and all of it at its end.
  useLayoutEffect(() => {
    atEnd.current = !(rows instanceof Fitting);
    node.current.scrollTop = atEnd.current ? length * ROW : 0;
    move(-1);
    measure();
  }, [rows]);
  useEffect(() => {
    const seen = new ResizeObserver(measure);
    seen.observe(node.current);
    return () => seen.disconnect();
  }, []);
  useEffect(() => {
    if (!go) return;
    const row = rows.rowOf(go.message);
    rows.changed();
    atEnd.current = false;
    move(row);
    requestAnimationFrame(() => {
      if (!node.current) return;
      node.current.scrollIntoView({ block: "nearest" });
      node.current.scrollTop = Math.max(0, row * ROW - node.current.clientHeight / 2);
      measure();
    });
  }, [go]);
  const select = (row, act = false) => {
    const to = Math.max(0, Math.min(length - 1, row));
    const { run, message } = rows.at(to);
    if (run && act && !rows.opened.delete(run.from)) rows.opened.add(run.from);
    if (run && act) { atEnd.current = false; rows.changed(); }
    move(to);
    const top = to * ROW;
    const list = node.current;
    if (top < list.scrollTop) list.scrollTop = top;
    if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
    choose(run ? run.from : message);
  };
  const key = (e) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15 }[e.key];
    const acts = e.key === "Enter" || e.key === " ";
    const to = acts ? cursor : e.key === "Home" ? 0 : e.key === "End" ? length - 1
      : by === undefined ? null : cursor < 0 ? length - 1 : cursor + by;
    if (to === null || (to < 0 && acts) || length === 0) return;
    e.preventDefault();
    select(to, acts);
  };
  const [from, to] = [Math.min(sight[0], Math.max(0, length - 1)), Math.min(length, sight[1])];
  const drawn = [];
  for (let row = from; row < to; row++) {
    const { run, message } = rows.at(row);
    const more = {
      role: "option", style: { top: `${row * ROW}px` }, "aria-selected": row === cursor ? "true" : "false", "aria-setsize": length, "aria-posinset": row + 1,
      onclick: () => select(row, true),
    };
    drawn.push(run ? html`<${Folded} key=${`f${run.from}`} run=${run} rows=${rows} ...${more} />`
      : html`<${Message} key=${`m${message}`} at=${message} message=${rows.line(message)} pinned=${pinned.has(message)} ...${more} />`);
  }
  const active = cursor >= from && cursor < to ? rows.at(cursor) : null;
  const scrolled = () => {
    atEnd.current = node.current.scrollTop + node.current.clientHeight > length * ROW - 2 * ROW;
    rows.sight = sight;
    measure();
  };
  rows.sight = [from, to];
  return html`<div class="list" ref=${node} tabindex="0" role="listbox" aria-label="Messages: what the client has, and what the model sees" onscroll=${scrolled} onkeydown=${key}
      aria-activedescendant=${active ? (active.run ? `f${active.run.from}` : `m${active.message}`) : undefined}>
    <div class="space" role="presentation" style=${{ height: `${length * ROW}px` }}>${drawn}</div></div>`;
}
