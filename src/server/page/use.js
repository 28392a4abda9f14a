// What several views need: data that stays fresh, dialogs, and small parts.

import { html, useState, useEffect, useLayoutEffect, useRef } from "./lib.js";
import { get, listen } from "./api.js";
import { ago } from "./format.js";

// What `path` answers, kept fresh: asked again when an event comes for which `wants` says so (several at once are one change), or every
// `every` seconds. What was shown stays until the new answer is there. Returns the value, the error, and a function that asks again.
export function useData(path, { wants = () => false, every = 0 } = {}) {
  const [state, set] = useState({ path: null, value: null, error: null });
  const again = useRef(async () => {});
  const asks = useRef(wants);
  asks.current = wants;
  useEffect(() => {
    if (!path) return undefined;
    const leave = new AbortController();
    let waiting = 0;
    const ask = async () => {
      try {
        const value = await get(path, leave.signal);
        set({ path, value, error: null });
      } catch (error) {
        // What is shown is still what was known last.
        if (!leave.signal.aborted) set((old) => ({ path, value: old.path === path ? old.value : null, error }));
      }
    };
    again.current = ask;
    const soon = () => { waiting ||= setTimeout(() => { waiting = 0; ask(); }, 300); };
    const stop = listen((event) => { if (event && asks.current(event)) soon(); });
    const timer = every && setInterval(() => { if (!document.hidden) ask(); }, every * 1000);
    ask();
    return () => {
      leave.abort();
      stop();
      clearTimeout(waiting);
      clearInterval(timer);
    };
  }, [path]);
  const shown = state.path === path ? state : { value: null, error: null };
  return [shown.value, shown.error, () => again.current()];
}

// A row that moves keeps the focus that it had: a browser takes it away from what is moved.
export function useFocusKept() {
  const held = document.activeElement;
  useLayoutEffect(() => {
    if (held && held !== document.activeElement && held.isConnected && document.activeElement === document.body) held.focus({ preventScroll: true });
  });
}

// A time, told as how long ago it was, and kept true.
export function Ago({ ms }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), Date.now() - ms < 90_000 ? 1000 : 30_000);
    return () => clearInterval(timer);
  }, [ms, Date.now() - ms < 90_000]);
  return html`<time datetime=${new Date(ms).toISOString()} title=${new Date(ms).toLocaleString()}>${ago(ms)}</time>`;
}

// The dialog that is open; one at a time. The root draws it.
let showDialog = () => {};
export const onDialog = (show) => { showDialog = show; };
export const open = (node) => showDialog(node);
export const close = () => showDialog(null);

export function Dialog({ name, wide, onclose = () => {}, children }) {
  const node = useRef(null);
  useLayoutEffect(() => {
    const before = document.activeElement;
    node.current.showModal();
    return () => { if (before?.isConnected) before.focus({ preventScroll: true }); };
  }, []);
  return html`<dialog ref=${node} class=${wide === true ? "wide" : wide ?? ""} aria-labelledby=${name} onclose=${() => { onclose(); close(); }}>${children}</dialog>`;
}

export const Button = ({ onclick, primary, children, ...more }) => html`<button type="button" class=${primary ? "btn primary" : "btn"} onclick=${onclick} ...${more}>${children}</button>`;

// Copies a text, or what `text` gives when it is asked.
export function Copy({ text, label = "Copy" }) {
  const [said, say] = useState(null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? await text() : text);
      say("Copied");
    } catch {
      say("Not copied");
    }
    setTimeout(() => say(null), 1500);
  };
  return html`<button type="button" class="copy" onclick=${copy} aria-live="polite">${said ?? label}</button>`;
}

export function save(name, text, type = "text/plain") {
  const href = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  Object.assign(link, { href, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

export const Card = ({ title, small, children, ...more }) => html`<section ...${more} class=${`card ${more.class ?? ""}`}>
  ${title && html`<h2>${title}${small && html` <small>· ${small}</small>`}</h2>`}${children}</section>`;

export const Wrong = ({ error }) => html`<p class="wrong" role="alert">${error.message}</p>`;

export const Scroll = ({ label, children }) => html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>${children}</div>`;
