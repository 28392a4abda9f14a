// The client's history beside what the model sees of it. Only the rows in sight exist, and pages of them come as they are
// scrolled to, so that a session of any length opens at once. What was folded is one row, which opens to its messages.

import { h, count, plural } from "./dom.js";
import { get, of } from "./api.js";

const ROW = 34;
const PAGE = 100;
const WHO = { user: "you", assistant: "assistant", tool: "result", system: "system" };
const VIEW = {
  preview: "a preview", placeholder: "a placeholder", pointer: "a pointer to the same text", restored: "as it is, with a pointer", noted: "as it is, with a line from the watchdog",
  cut: "cut to fit",
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

export class Timeline {
  constructor(id, choose) {
    this.id = id;
    this.choose = choose;
    this.total = 0;
    this.fold = null;
    this.runs = [];
    // Runs that are open, by their first message.
    this.opened = new Set();
    // Messages that somebody pinned.
    this.pinned = new Set();
    this.pages = new Map();
    this.waiting = new Set();
    // The row that is chosen.
    this.cursor = -1;
    this.space = h("div", { class: "space", role: "presentation" });
    this.node = h("div", {
      class: "list", tabindex: 0, role: "listbox", "aria-label": "Messages: what the client has, and what the model sees",
      onscroll: () => this.draw(), onkeydown: (e) => this.key(e),
    }, this.space);
    this.heads = h("div", { class: "heads", "aria-hidden": "true" }, h("span", {}, "What the client has"), h("span", {}, "What the model sees"));
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  // The end is what people look for first.
  async open(signal) {
    const answer = await get(of(this.id, `/messages?limit=${PAGE}`), signal);
    this.take(answer);
  }

  // To be called once it stands in the document: before, nothing scrolls.
  end() {
    this.draw();
    this.node.scrollTop = this.rows() * ROW;
    this.draw();
  }

  take(answer) {
    this.pages.set(Math.floor(answer.from / PAGE), answer.messages);
    this.total = answer.total;
    this.fold = answer.fold;
    this.runs = runs(answer.fold);
  }

  // Something happened: what is in sight is asked for again.
  async refresh() {
    const atEnd = this.node.scrollTop + this.node.clientHeight > this.rows() * ROW - 2 * ROW;
    const [from, to] = this.range();
    const seen = [this.at(from), this.at(Math.max(from, to - 1))].map((row) => Math.floor((row.message ?? row.run.from) / PAGE));
    this.pages.clear();
    await Promise.all([...new Set(seen)].map((page) => this.load(page)));
    if (atEnd) this.node.scrollTop = this.rows() * ROW;
    this.draw();
  }

  async load(page) {
    if (this.waiting.has(page)) return;
    this.waiting.add(page);
    try {
      this.take(await get(of(this.id, `/messages?from=${page * PAGE}&limit=${PAGE}`)));
      this.draw();
    } finally {
      this.waiting.delete(page);
    }
  }

  // Rows that a run has: its own, and its messages where it is open.
  tall(run) { return 1 + (this.opened.has(run.from) ? run.to - run.from : 0); }

  rows() { return this.runs.reduce((rows, run) => rows + this.tall(run) - (run.to - run.from), this.total); }

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

  range() {
    const first = Math.max(0, Math.floor(this.node.scrollTop / ROW) - 5);
    return [first, Math.min(this.rows(), first + Math.ceil((this.node.clientHeight || 600) / ROW) + 10)];
  }

  draw() {
    this.space.style.height = `${this.rows() * ROW}px`;
    const [from, to] = this.range();
    const drawn = [];
    for (let row = from; row < to; row++) {
      const { run, message } = this.at(row);
      const page = run ? null : this.pages.get(Math.floor(message / PAGE));
      if (!run && !page) this.load(Math.floor(message / PAGE));
      const node = run ? this.folded(run, row) : this.row(message, row, page?.[message % PAGE]);
      node.style.top = `${row * ROW}px`;
      drawn.push(node);
    }
    this.space.replaceChildren(...drawn);
    const active = this.cursor >= from && this.cursor < to ? drawn[this.cursor - from].id : null;
    if (active) this.node.setAttribute("aria-activedescendant", active);
    else this.node.removeAttribute("aria-activedescendant");
  }

  option(kind, id, row, more) {
    return h("div", {
      class: `row ${kind}`, role: "option", id, "aria-selected": row === this.cursor ? "true" : "false", "aria-setsize": this.rows(),
      "aria-posinset": row + 1, onclick: () => this.select(row, true), ...more,
    });
  }

  folded(run, row) {
    const open = this.opened.has(run.from);
    const node = this.option("folded", `f${run.from}`, row, {});
    const last = run.to - 1;
    node.append(
      h("span", { class: "n" }, open ? "▾" : "▸"), h("span", { class: "who" }, "folded"),
      h("span", { class: "t" }, `${plural(run.to - run.from, "message")}, ${run.from}–${last}: ${open ? "shown below" : "open to read"}`),
      h("span", { class: "k" }), h("span", { class: "v" }, run === this.runs[0] ? `brief of messages ${this.fold.from}–${this.fold.to - 1} · ${count(this.fold.brief_tokens)} tokens` : "in the brief"));
    return node;
  }

  row(at, row, message) {
    const changed = message && message.became !== "same";
    const node = this.option(message?.became === "folded" ? "inside" : changed ? "changed" : "", `m${at}`, row, {});
    if (!message) {
      node.append(h("span", { class: "n" }, at), h("span", {}, "…"));
      return node;
    }
    const call = message.calls[0];
    const words = call && !message.words ? h("code", {}, call) : message.words || (message.media ? "(media)" : "(empty)");
    const seen = message.became === "same" ? "as it is" : message.became === "folded" ? "in the brief"
      : `${VIEW[message.became] ?? message.became} · ${count(message.view_tokens)} tokens`;
    node.append(
      h("span", { class: "n" }, at), h("span", { class: "who" }, WHO[message.role] ?? message.role),
      h("span", { class: "t" }, this.pinned.has(at) && h("span", { class: "mark" }, "pinned"), words), h("span", { class: "k" }, count(message.tokens)), h("span", { class: "v" }, seen));
    return node;
  }

  // Chooses a row; `act` opens or closes what was folded.
  select(row, act = false) {
    this.cursor = Math.max(0, Math.min(this.rows() - 1, row));
    const { run, message } = this.at(this.cursor);
    if (run && act && !this.opened.delete(run.from)) this.opened.add(run.from);
    const top = this.cursor * ROW;
    if (top < this.node.scrollTop) this.node.scrollTop = top;
    if (top + ROW > this.node.scrollTop + this.node.clientHeight) this.node.scrollTop = top + ROW - this.node.clientHeight;
    this.draw();
    this.choose(run ? run.from : message);
  }

  key(e) {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15 }[e.key];
    const acts = e.key === "Enter" || e.key === " ";
    const to = acts ? this.cursor : e.key === "Home" ? 0 : e.key === "End" ? this.rows() - 1
      : by === undefined ? null : this.cursor < 0 ? this.rows() - 1 : this.cursor + by;
    if (to === null || to < 0 && acts || this.total === 0) return;
    e.preventDefault();
    this.select(to, acts);
  }
}
