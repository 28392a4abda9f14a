// The window as a strip by region, with its walls and the warm line.

import { h, count, percent } from "./dom.js";

export const NAMES = {
  system: "System", tools: "Tools", brief: "Brief", user: "You", assistant: "Assistant", results: "Results", other: "Other",
  media: "Media", history: "History", reserve: "Kept for the reply", free: "Free",
};

// The regions of a conversation's state; `history` tells who said what, where that is known.
export function regions(state, history) {
  const r = state?.regions ?? {};
  const talk = history ? [["user", history.user], ["assistant", history.assistant], ["results", history.results], ["other", history.other]] : [["history", r.history]];
  const all = [["system", r.system], ["tools", r.tools], ["brief", r.brief], ...talk, ["media", r.media], ["reserve", r.output_reserved]];
  return all.filter(([, tokens]) => tokens > 0);
}

// A line of the prompt as the share of the window that headline, chart and config tell it by: with what is kept for the reply.
export const share = (tokens, state) => (tokens + (state.regions?.output_reserved ?? 0)) / state.window;

// What nobody counted is told as that.
export const about = (state) => (state?.prompt_tokens_source?.startsWith("estimated") ? "about " : "");

export function thin(state) {
  const window = state?.window;
  const parts = window ? regions(state) : [];
  const label = window ? `${about(state)}${percent(state.pressure)} of ${count(window)} tokens` : "the window is not known";
  return h("div", { class: "strip thin", role: "img", "aria-label": label },
    parts.map(([name, tokens]) => h("span", { class: `k-${name}`, width: `${(tokens / window) * 100}%` })));
}

export function strip(seen) {
  const { state, history } = seen;
  const window = state.window;
  if (!window) return h("p", { class: "soft" }, "Nobody knows the window of this model: nothing is rewritten for it. ", h("code", {}, "--num-ctx N"), " says one.");
  const parts = regions(state, history);
  // Who said how much of the history is shared out by estimates.
  const parted = new Set(history ? ["user", "assistant", "results", "other"] : []);
  const label = parts.map(([name, tokens]) => `${NAMES[name]} ${count(tokens)}`).join(", ");
  const lines = state.lines ?? {};
  const fold = lines.fold_at ?? lines.summarize_at;
  // Where folds wait for the wall, the two are one.
  const last = fold < lines.limit ? [["fold", fold, "fold"], ["limit", lines.limit, "limit"]] : [["fold and limit", lines.limit, "limit"]];
  // One scale for all percentages: prompt and what is kept for the reply, as a share of the window.
  const reserve = state.regions?.output_reserved ?? 0;
  const walls = [["clear", lines.clear_at, "clear"], ...last]
    .filter(([, tokens]) => tokens > 0 && tokens <= window)
    .map(([name, tokens, kind]) => [`${name} ${percent(share(tokens, state))}`, tokens + reserve, kind]);
  // The server's cache reaches into the prompt, and no further.
  if (seen.warm_tokens > 0) walls.push(["in the server's cache to here", Math.min(seen.warm_tokens, state.prompt_tokens ?? window), "warm low"]);
  return h("div", {},
    h("div", { class: "strip", role: "img", "aria-label": `The window by region: ${label}` },
      parts.map(([name, tokens]) => h("span", { class: `k-${name}`, width: `${(tokens / window) * 100}%`, title: `${NAMES[name]}: ${count(tokens)} tokens` }))),
    h("div", { class: "walls" }, walls.map(([name, tokens, kind]) =>
      h("i", { class: tokens / window > 0.93 ? `${kind} end` : kind, left: `${(tokens / window) * 100}%` }, h("b", {}, name)))),
    h("ul", { class: "legend" }, parts.map(([name, tokens]) => h("li", {}, h("b", { class: `k-${name}` }), `${NAMES[name]} `, h("em", {}, `${parted.has(name) ? "about " : about(state)}${count(tokens)}`)))));
}
