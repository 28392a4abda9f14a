// Pressure by request, with each rewrite marked.

import { svg, percent } from "./dom.js";
import { share } from "./strip.js";

const WIDTH = 340;
const HEIGHT = 130;

export function chart(turns, state) {
  const known = turns.filter((turn) => typeof turn.pressure === "number");
  // What a person changed since the last request shows at once, as the headline does.
  const last = known.at(-1);
  if (last && state.window && last.prompt_tokens !== state.prompt_tokens) known.push({ ...last, pressure: state.pressure, rewritten: true });
  const top = Math.max(1, ...known.map((turn) => turn.pressure));
  const x = (i) => (known.length < 2 ? WIDTH / 2 : (i / (known.length - 1)) * (WIDTH - 8) + 4);
  const y = (pressure) => HEIGHT - 6 - (pressure / top) * (HEIGHT - 20);
  const marks = known.flatMap((turn, i) => (turn.rewritten ? [[i, turn]] : []));
  const label = known.length
    ? `Pressure over ${known.length} requests, now ${percent(known.at(-1).pressure)}, with ${marks.length} rewrites`
    : "No requests yet";
  const out = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  const window = state.window;
  for (const [name, tokens] of window ? [["clear", state.lines?.clear_at], ["fold", state.lines?.fold_at ?? state.lines?.summarize_at]] : []) {
    if (!(tokens > 0)) continue;
    const wall = share(tokens, state);
    const at = y(wall);
    const text = svg("text", { x: 2, y: at - 3 });
    text.textContent = `${name} ${percent(wall)}`;
    out.append(svg("line", { class: "wall", x1: 0, x2: WIDTH, y1: at, y2: at }), text);
  }
  out.append(svg("polyline", { points: known.map((turn, i) => `${x(i).toFixed(1)},${y(turn.pressure).toFixed(1)}`).join(" ") }));
  for (const [i, turn] of marks) {
    const title = svg("title");
    title.textContent = `rewritten: ${percent(turn.pressure)} afterwards`;
    out.append(svg("circle", { cx: x(i), cy: y(turn.pressure), r: 4 }, title));
  }
  return out;
}
