// The client's history beside what the model sees of it. Only the rows in sight exist, and pages of them come as they are
// scrolled to, so that a session of any length opens at once.

import { h, count } from "./dom.js";
import { get, of } from "./api.js";

const ROW = 34;
const PAGE = 100;
const WHO = { user: "you", assistant: "assistant", tool: "result", system: "system" };
const VIEW = {
  preview: "a preview", placeholder: "a placeholder", pointer: "a pointer to the same text", restored: "as it is, with a pointer",
  cut: "cut to fit",
};

export class Timeline {
  constructor(id, choose) {
    this.id = id;
    this.choose = choose;
    this.total = 0;
    this.fold = null;
    // Messages that somebody pinned.
    this.pinned = new Set();
    this.pages = new Map();
    this.waiting = new Set();
    this.at = -1;
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
    this.node.scrollTop = this.total * ROW;
    this.draw();
  }

  take(answer) {
    this.pages.set(Math.floor(answer.from / PAGE), answer.messages);
    this.total = answer.total;
    this.fold = answer.fold;
  }

  // Something happened: what is in sight is asked for again.
  async refresh() {
    const atEnd = this.node.scrollTop + this.node.clientHeight > this.total * ROW - 2 * ROW;
    const shown = this.range();
    this.pages.clear();
    await Promise.all([...new Set([Math.floor(shown[0] / PAGE), Math.floor(Math.max(0, shown[1] - 1) / PAGE)])].map((page) => this.load(page)));
    if (atEnd) this.node.scrollTop = this.total * ROW;
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

  range() {
    const first = Math.max(0, Math.floor(this.node.scrollTop / ROW) - 5);
    return [first, Math.min(this.total, first + Math.ceil((this.node.clientHeight || 600) / ROW) + 10)];
  }

  draw() {
    this.space.style.height = `${this.total * ROW}px`;
    const [from, to] = this.range();
    const rows = [];
    for (let at = from; at < to; at++) {
      const page = this.pages.get(Math.floor(at / PAGE));
      if (!page) this.load(Math.floor(at / PAGE));
      rows.push(this.row(at, page?.[at % PAGE]));
    }
    this.space.replaceChildren(...rows);
    if (this.at >= from && this.at < to) this.node.setAttribute("aria-activedescendant", `m${this.at}`);
    else this.node.removeAttribute("aria-activedescendant");
  }

  row(at, message) {
    const changed = message && message.became !== "same";
    const kind = message?.became === "folded" ? "folded" : changed ? "changed" : "";
    const node = h("div", {
      class: `row ${kind}`, role: "option", id: `m${at}`, "aria-selected": at === this.at ? "true" : "false", "aria-setsize": this.total,
      "aria-posinset": at + 1, onclick: () => this.select(at),
    });
    node.style.top = `${at * ROW}px`;
    if (!message) {
      node.append(h("span", { class: "n" }, at), h("span", {}, "…"));
      return node;
    }
    const call = message.calls[0];
    const words = call && !message.words ? h("code", {}, call) : message.words || (message.media ? "(media)" : "(empty)");
    node.append(
      h("span", { class: "n" }, at), h("span", { class: "who" }, WHO[message.role] ?? message.role),
      h("span", { class: "t" }, this.pinned.has(at) && h("span", { class: "mark" }, "pinned"), words), h("span", { class: "k" }, count(message.tokens)), h("span", { class: "v" }, this.seen(at, message)));
    return node;
  }

  seen(at, message) {
    if (message.became === "same") return "as it is";
    if (message.became !== "folded") return `${VIEW[message.became] ?? message.became} · ${count(message.view_tokens)} tokens`;
    const fold = this.fold;
    return fold && at === fold.from ? `brief of messages ${fold.from}–${fold.to - 1} · ${count(fold.brief_tokens)} tokens` : "in the brief";
  }

  select(at) {
    this.at = Math.max(0, Math.min(this.total - 1, at));
    const top = this.at * ROW;
    if (top < this.node.scrollTop) this.node.scrollTop = top;
    if (top + ROW > this.node.scrollTop + this.node.clientHeight) this.node.scrollTop = top + ROW - this.node.clientHeight;
    this.draw();
    this.choose(this.at);
  }

  key(e) {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15 }[e.key];
    const to = e.key === "Home" ? 0 : e.key === "End" ? this.total - 1 : by === undefined ? null : this.at < 0 ? this.total - 1 : this.at + by;
    if (to === null || this.total === 0) return;
    e.preventDefault();
    this.select(to);
  }
}
