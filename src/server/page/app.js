// Which view is shown, the header with the search and the server, the key, and the keyboard.

import { html, render, useEffect, useRef, useState } from "./lib.js";
import { follow, get, heard, listen, logout, look, onKeyNeeded } from "./api.js";
import { useData, Dialog, open, close, onDialog } from "./use.js";
import { count, model } from "./format.js";
import { Overview } from "./overview.js";
import { Requests } from "./requests.js";
import { Conversation } from "./conversation.js";
import { Chat } from "./chat.js";
import { Everywhere, Find } from "./search.js";

const THEME = "windowsill-theme";
const THEMES = { auto: "light dark", light: "light", dark: "dark" };

// A part of the address as it was meant; what is no encoding stands for itself.
function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

function parse() {
  const [, kind, id, at] = location.hash.split("/");
  const message = /^\d+$/.test(at ?? "") ? Number(at) : null;
  if (kind === "c" && id) return { kind: "conversation", id: decoded(id), at: message };
  if (kind === "search") return { kind, query: decoded(id ?? "") };
  return { kind: ["chat", "requests"].includes(kind) ? kind : "overview" };
}

function Key({ again, done }) {
  const input = useRef(null);
  useEffect(() => { input.current.closest("dialog").addEventListener("cancel", (e) => e.preventDefault()); }, []);
  return html`<${Dialog} name="key-title"><form method="dialog" onsubmit=${(e) => { e.preventDefault(); const key = input.current.value.trim(); close(); done(key); }}>
    <h1 id="key-title">The key</h1><p class=${again ? "wrong" : "why"}>${again ? "That key is not the right one." : "This windowsill asks for a key: your own, or the api_key of its config."}</p>
    <label>API key<input type="password" autocomplete="off" required name="key" ref=${input} /></label><div class="buttons"><button class="btn primary" type="submit">Open</button></div></form><//>`;
}

// Whose key it is, where each person has one. An admin chooses whose conversations are shown.
function Who() {
  const [who, set] = useState(null);
  useEffect(() => { get("/windowsill/whoami").then(set).catch(() => {}); }, []);
  if (!who?.key) return null;
  const scope = who.scopes.length > 1
    ? html`<select aria-label="Whose conversations" value=${who.scope} onchange=${(e) => look(e.target.value)}>${who.scopes.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select>`
    : who.scope === who.key ? null : html`<span>${who.scope}</span>`;
  return html`<span class="who">${who.key} ${scope} <button class="btn" type="button" onclick=${logout}>Log out</button></span>`;
}

// The server behind, and whether it answers. Whether events come is only told where they do not.
function Server({ servers, error }) {
  const [, redraw] = useState(0);
  useEffect(() => listen((event) => { if (!event) redraw((n) => n + 1); }), []);
  const models = servers?.models ?? [];
  const up = models.filter((m) => !m.error);
  const first = up.find((m) => m.loaded) ?? up[0];
  const down = error || (servers && up.length === 0);
  const words = !servers && !error ? "asking the server …"
    : error ? "windowsill does not answer"
    : !models.length ? "no inference server was found"
    : !up.length ? `${models[0].upstream} does not answer`
    : `${[first.kind ?? first.upstream, model(first.model), first.window ? `${count(first.window)} ${first.loaded ? "loaded" : "tokens"}` : null].filter(Boolean).join(" · ")}${up.length > 1 ? ` · ${up.length - 1} more` : ""}`;
  return html`<span class=${`server ${down ? "down" : servers ? "up" : ""} ${heard.live ? "live" : ""}`} id="status" role="status">${words}${servers && !heard.live ? " · not live, connecting again …" : ""}</span>`;
}

const KEYS = [["o", "overview"], ["r", "requests"], ["c", "chat"], ["/", "search everything"], ["Esc", "closes what is open"], ["↑ ↓ Home End Enter", "in a history"], ["?", "this list"]];
const Help = () => html`<${Dialog} name="help-title"><h1 id="help-title">Keys</h1><dl class="keys">${KEYS.map(([key, what]) => html`<dt key=${key}><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
  <div class="buttons"><button class="btn" type="button" onclick=${(e) => e.target.closest("dialog").close()}>Close</button></div><//>`;

function Theme() {
  const [theme, set] = useState(() => (localStorage.getItem(THEME) in THEMES ? localStorage.getItem(THEME) : "auto"));
  useEffect(() => {
    document.documentElement.style.colorScheme = THEMES[theme];
    if (theme === "auto") localStorage.removeItem(THEME);
    else localStorage.setItem(THEME, theme);
  }, [theme]);
  return html`<select class="theme" aria-label="Colors" value=${theme} onchange=${(e) => set(e.target.value)}>${Object.keys(THEMES).map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select>`;
}

function Root() {
  const [view, go] = useState(parse);
  const [dialog, show] = useState(null);
  const [title, say] = useState(null);
  const [servers, error, askServers] = useData("/windowsill/models", { wants: (event) => ["request_failed", "window_changed", "model_changed"].includes(event.kind), every: 15 });
  useEffect(() => {
    onDialog(show);
    onKeyNeeded((again) => new Promise((done) => show(html`<${Key} key=${Math.random()} again=${again} done=${done} />`)));
    const moved = () => { go(parse()); say(null); close(); document.getElementById("main").focus({ preventScroll: true }); scrollTo(0, 0); };
    addEventListener("hashchange", moved);
    const key = (e) => {
      if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input, textarea, select, dialog, [contenteditable]")) return;
      const to = { o: "#/", r: "#/requests", c: "#/chat" }[e.key];
      if (to) location.hash = to;
      if (e.key === "?") open(html`<${Help} />`);
      if (e.key === "/") { document.getElementById("find").select(); e.preventDefault(); }
    };
    addEventListener("keydown", key);
    follow();
    return () => { removeEventListener("hashchange", moved); removeEventListener("keydown", key); };
  }, []);
  const name = { overview: "Overview", requests: "Requests", chat: "Chat", search: `Search: ${view.query}`, conversation: title ?? view.id }[view.kind];
  useEffect(() => { document.title = `${name} — windowsill`; }, [name]);
  const link = (kind, to, words) => html`<a href=${to} aria-current=${view.kind === kind ? "page" : undefined}>${words}</a>`;
  return html`<a class="skip" href="#main" onclick=${(e) => { e.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <header class="top"><a class="logo" href="#/">windowsill</a><nav aria-label="Main">${link("overview", "#/", "Conversations")}${link("requests", "#/requests", "Requests")}${link("chat", "#/chat", "Chat")}</nav>
      <${Find} query=${view.query} /><${Server} servers=${servers} error=${error} /><${Who} /><${Theme} /></header>
    <main id="main" tabindex="-1">${view.kind === "overview" ? html`<${Overview} servers=${servers} serversError=${error} serversChanged=${askServers} />`
      : view.kind === "search" ? html`<${Everywhere} query=${view.query} />`
      : view.kind === "requests" ? html`<${Requests} />`
      : view.kind === "chat" ? html`<${Chat} servers=${servers} />`
      : html`<${Conversation} key=${view.id} id=${view.id} goto=${view.at} title=${say} />`}</main>${dialog}`;
}

render(html`<${Root} />`, document.getElementById("root"));
