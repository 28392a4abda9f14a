// Search in one conversation: the passages that fit, the best first. Choosing one opens its message.

import { html, useState } from "./lib.js";
import { get, of } from "./api.js";

export function Search({ id, show }) {
  const [query, write] = useState("");
  const [found, set] = useState(null);
  const look = async (e) => {
    e.preventDefault();
    if (!query.trim()) { set(null); return; }
    try {
      set({ answer: await get(of(id, `/search?limit=10&query=${encodeURIComponent(query)}`)) });
    } catch (error) {
      set({ error });
    }
  };
  const hits = found?.answer?.hits ?? [];
  return html`<div class="finder" id="search"><form class="search" onsubmit=${look}>
      <input type="search" name="query" autocomplete="off" placeholder="Search this conversation ( / )" aria-label="Search this conversation" value=${query} oninput=${(e) => { write(e.target.value); if (!e.target.value) set(null); }} />
      <button class="btn" type="submit">Search</button></form>
    <div aria-live="polite">${found?.error && html`<p class="wrong">${found.error.message}</p>`}
      ${found?.answer && hits.length === 0 && html`<p class="why">Nothing fits.</p>`}
      ${hits.length > 0 && html`<ul class="plain hits">${hits.map((hit, n) => html`<li key=${`${hit.id} ${n}`}><button type="button" class="link" onclick=${() => show(hit.message)}>Message ${hit.message} · ${hit.call ?? hit.kind}</button>
        <span class="soft">${hit.date ? ` · ${hit.date}` : ""}</span><div>${hit.snippet}</div></li>`)}</ul>`}
      ${found?.answer?.unindexed > 0 && html`<p class="why">The index is being made anew: there may be more in a while.</p>`}</div></div>`;
}
