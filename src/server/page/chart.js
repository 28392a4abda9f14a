// Pressure by request, with each rewrite marked.

import { html } from "./lib.js";
import { percent } from "./format.js";
import { walls } from "./strip.js";

export function Chart({ turns, state }) {
  const known = turns.filter((turn) => typeof turn.pressure === "number");
  // What a person changed since the last request shows at once, as the headline does.
  const last = known.at(-1);
  if (last && state.window && last.prompt_tokens !== state.prompt_tokens) known.push({ ...last, event: "now", pressure: state.pressure, rewritten: true });
  const lines = state.window ? walls(state) : [];
  const top = Math.max(1, ...known.map((turn) => turn.pressure));
  const x = (i) => (known.length < 2 ? 50 : (i / (known.length - 1)) * 100);
  const y = (share) => 100 - (share / top) * 100;
  const marks = known.flatMap((turn, i) => (turn.rewritten ? [[i, turn]] : []));
  const label = known.length
    ? `Pressure over ${known.length} requests, now ${percent(known.at(-1).pressure)}, with ${marks.length} rewrites`
    : "No requests yet";
  return html`<div class="chart" role="img" aria-label=${label}>
    <div class="plot">
      <svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">
        ${lines.map(([name, share, kind]) => html`<line key=${name} class=${`wall ${kind}`} x1="0" x2="100" y1=${y(share)} y2=${y(share)} />`)}
        <polyline points=${known.map((turn, i) => `${x(i).toFixed(2)},${y(turn.pressure).toFixed(2)}`).join(" ")} />
      </svg>
      ${marks.map(([i, turn]) => html`<span key=${turn.event} class=${marks.length > 40 ? "dot small" : "dot"} style=${{ left: `${x(i)}%`, top: `${y(turn.pressure)}%` }} title=${`rewritten: ${percent(turn.pressure)} afterwards`}></span>`)}
    </div>
    <div class="scale" aria-hidden="true">${apart(lines.map(([name, share]) => ({ name, at: y(share) }))).map(({ name, at }) => html`<span key=${name} style=${{ top: `${at}%` }}>${name}</span>`)}</div>
  </div>`;
}

// Labels one below the other, at least so far apart (in hundredths of the height).
const APART = 11;
function apart(labels) {
  const sorted = [...labels].sort((a, b) => b.at - a.at);
  for (let i = 1; i < sorted.length; i++) sorted[i].at = Math.min(sorted[i].at, sorted[i - 1].at - APART);
  return sorted;
}
