// The window as a strip by region, with its walls and how far the server's cache reaches.

import { html } from "./lib.js";
import { count, percent, plural } from "./format.js";

export const NAMES = {
  system: "System", tools: "Tools", brief: "Brief", user: "You", assistant: "Assistant", results: "Results", other: "Other",
  media: "Media", history: "History", reserve: "Kept for the reply",
};

// A line of the prompt as the share of the window that headline, chart and config tell it by: with what is kept for the reply.
export const share = (tokens, state) => (tokens + (state.regions?.output_reserved ?? 0)) / state.window;

// What was not counted is told as that.
export const about = (state) => (state?.prompt_tokens_source?.startsWith("estimated") ? "about " : "");

// The regions of a conversation's state; `history` tells who said what, where that is known.
export function regions(state, history) {
  const r = state?.regions ?? {};
  const talk = history ? [["user", history.user], ["assistant", history.assistant], ["results", history.results], ["other", history.other]] : [["history", r.history]];
  const all = [["system", r.system], ["tools", r.tools], ["brief", r.brief], ...talk, ["media", r.media], ["reserve", r.output_reserved]];
  return all.filter(([, tokens]) => tokens > 0);
}

const Part = ({ name, tokens, window, title }) => html`<span class=${`k-${name}`} style=${{ width: `${(tokens / window) * 100}%` }} title=${title}></span>`;

export function Thin({ state }) {
  const window = state?.window;
  const label = window ? `${about(state)}${percent(state.pressure)} of ${count(window)} tokens` : "the window is not known";
  return html`<div class="strip thin" role="img" aria-label=${label}>
    ${window && regions(state).map(([name, tokens]) => html`<${Part} key=${name} name=${name} tokens=${tokens} window=${window} />`)}</div>`;
}

// The walls of a window, each as [name, share of the window, kind]; walls at one place are one. All percentages are on one scale: the prompt
// and what is kept for the reply.
export function walls(state) {
  const lines = state.lines ?? {};
  const all = [["clear", lines.clear_at, "clear"], ["fold", lines.fold_at ?? lines.summarize_at, "fold"], ["limit", lines.limit, "limit"]];
  const out = [];
  for (const [name, tokens, kind] of all) {
    if (!(tokens > 0) || tokens > state.window) continue;
    const last = out.at(-1);
    const at = share(tokens, state);
    if (last && Math.abs(last[1] - at) < 0.005) out[out.length - 1] = [`${last[0]} and ${name}`, at, kind];
    else out.push([name, at, kind]);
  }
  return out.map(([name, share, kind]) => [`${name} ${percent(share)}`, share, kind]);
}

// Labels that would lie on each other go one level down; a label is about so wide (pixels).
const LABEL = 125;
function levels(marks) {
  const ends = [];
  const width = Math.min(0.5, LABEL / Math.max(200, Math.min(innerWidth, 1400) - 90));
  return marks.map(([name, share, kind]) => {
    const from = share > 0.9 ? share - width : Math.max(0, share - width / 2);
    let level = ends.findIndex((end) => end <= from);
    if (level < 0) level = ends.length;
    ends[level] = from + width;
    return { name, share, kind, level };
  });
}

export function Strip({ seen }) {
  const { state, history } = seen;
  const window = state.window;
  if (!window) return html`<p class="soft">The window of this model is not known, so nothing is rewritten for it. <code>--num-ctx N</code> sets one.</p>`;
  const parts = regions(state, history);
  // The server's cache reaches into the prompt, and no further.
  const warm = seen.warm_tokens > 0 ? [["cached up to here", Math.min(seen.warm_tokens, state.prompt_tokens ?? window) / window, "warm"]] : [];
  // Who said how much of the history is shared out by estimates.
  const parted = new Set(history ? ["user", "assistant", "results", "other"] : []);
  const marks = levels([...walls(state), ...warm].sort((a, b) => a[1] - b[1]));
  const deep = Math.max(0, ...marks.map((mark) => mark.level)) + 1;
  return html`<div>
    <div class="strip" role="img" aria-label=${`The window by region: ${parts.map(([name, tokens]) => `${NAMES[name]} ${count(tokens)}`).join(", ")}`}>
      ${parts.map(([name, tokens]) => html`<${Part} key=${name} name=${name} tokens=${tokens} window=${window} title=${`${NAMES[name]}: ${count(tokens)} tokens`} />`)}</div>
    <div class="walls" style=${{ height: `${deep * 17 + 6}px` }}>${marks.map(({ name, share, kind, level }) => html`
      <i key=${kind} class=${`${kind} ${share > 0.9 ? "end" : share < 0.08 ? "begin" : ""}`} style=${{ left: `${share * 100}%`, height: `${46 + level * 17}px` }}><b>${name}</b></i>`)}</div>
    <ul class="legend">${parts.map(([name, tokens]) => html`<li key=${name}><b class=${`k-${name}`}></b>${NAMES[name]} <em>${parted.has(name) ? "about " : about(state)}${count(tokens)}</em></li>`)}
      ${warm.length > 0 ? html`<li class="right">The server has read everything left of the red line already.</li>`
      : seen.others_since > 0 && html`<li class="right" id="others">${plural(seen.others_since, "other conversation was", "other conversations were")} answered since: the server may have to read this one again.</li>`}</ul></div>`;
}
