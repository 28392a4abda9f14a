// Which view is shown, the key, and what happens live.

import { h } from "./dom.js";
import { follow, onKeyNeeded } from "./api.js";
import { overview } from "./overview.js";
import { conversation } from "./conversation.js";
import { chat } from "./chat.js";

const main = document.getElementById("main");
const status = document.getElementById("status");
let view = null;
let leave = new AbortController();

onKeyNeeded((again) => new Promise((resolve) => {
  const input = h("input", { type: "password", autocomplete: "off", required: true, name: "key" });
  const dialog = h("dialog", { "aria-labelledby": "key-title", oncancel: (e) => e.preventDefault() },
    h("form", { method: "dialog", onsubmit: (e) => {
      e.preventDefault();
      dialog.close();
      dialog.remove();
      resolve(input.value.trim());
    } },
    h("h1", { id: "key-title" }, "The key"),
    h("p", { class: again ? "wrong" : "why" }, again ? "That key is not the right one." : "This windowsill asks for a key: the api_key of its config. It stays in this tab and is forgotten with it."),
    h("label", {}, "API key", input), h("div", { class: "buttons" }, h("button", { class: "btn primary", type: "submit" }, "Open"))));
  document.body.append(dialog);
  dialog.showModal();
}));

async function show() {
  leave.abort();
  const mine = (leave = new AbortController());
  view = null;
  const [, kind, id] = location.hash.split("/");
  const isOverview = kind !== "chat" && (kind !== "c" || !id);
  const nav = document.getElementById("nav-overview");
  if (isOverview) nav.setAttribute("aria-current", "page");
  else nav.removeAttribute("aria-current");
  try {
    const next = isOverview ? await overview(mine.signal) : kind === "chat" ? chat() : await conversation(decodeURIComponent(id), mine.signal);
    if (mine.signal.aborted) return;
    view = next;
    main.replaceChildren(next.node);
    document.title = `${next.title} — windowsill`;
    next.shown?.();
  } catch (e) {
    if (mine.signal.aborted) return;
    main.replaceChildren(h("section", { class: "card" }, h("h1", {}, "That did not work"), h("p", { class: "wrong" }, e.message), h("a", { href: "#/" }, "Overview")));
  }
}

// Several events come at once: they are one change.
let waiting = false;
function happened(event) {
  if (!view?.onEvent(event) || waiting) return;
  waiting = true;
  const shown = view;
  setTimeout(async () => {
    waiting = false;
    if (shown !== view || document.querySelector("dialog[open]")) return;
    try { await shown.refresh(); } catch { /* the next event tries again */ }
  }, 300);
}

const words = { live: "live", lost: "the connection was lost, trying again" };
const told = (state) => {
  status.className = `server ${state}`;
  status.textContent = words[state];
};

window.addEventListener("hashchange", show);
await show();
follow(happened, told, new AbortController().signal);
