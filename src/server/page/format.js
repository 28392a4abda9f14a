// Figures as people read them.

const whole = new Intl.NumberFormat("en-US");
export const count = (n) => (typeof n === "number" ? whole.format(Math.round(n)) : "–");
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
export const percent = (p) => (typeof p === "number" ? `${Math.round(p * 100)} %` : "–");
export const bytes = (n) => (typeof n !== "number" ? "–" : n >= 1 << 30 ? `${(n / (1 << 30)).toFixed(1)} GiB` : `${count(n / (1 << 20))} MiB`);

// A time that something took or takes, in seconds.
export const seconds = (s) => (typeof s !== "number" ? "not measured yet" : s < 10 ? `${s.toFixed(1)} s` : s < 120 ? `${Math.round(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`);

// A model that is a path is told by its file, and a long name is cut in the middle: it begins with the family and ends with the
// quantization.
export function model(name, most = 40) {
  const text = name ?? "";
  const file = /\.gguf$|^[/.~]/.test(text) ? text.split(/[/\\]/).at(-1) : text;
  const end = Math.floor((most - 1) / 2);
  return file.length <= most ? file : `${file.slice(0, most - 1 - end)}…${file.slice(-end)}`;
}

// What was done to a prompt, in the words of docs/glossary.md.
const DONE = { evict: "preview", summarize: "fold", truncate: "cut", emergency: "after a refusal" };
export const rewritten = (action) => (action ?? "none").split(",").filter((one) => one !== "none").map((one) => DONE[one] ?? one).join(", ");

// A program as its headers name it; all browsers call themselves by the first of them.
export const program = (state) => named(state?.whose?.client);
export const named = (name) => (name === "Mozilla" ? "a browser" : name === "unnamed" ? null : name);

// What a request is at, or spent its time on, in order; `other` is what is left of the whole.
export const PHASES = [["queued", "queued"], ["counted", "finding and counting the history"], ["planned", "planning"], ["brief", "waiting for a brief"],
  ["waiting", "waiting for the server"], ["prefill", "reading the prompt"], ["thinking", "thinking"], ["answer", "writing the answer"], ["other", "the rest"]];
export const phase = (name) => PHASES.find(([known]) => known === name)?.[1] ?? "";

// A text with the thousands of its numbers set apart.
export const grouped = (text) => text.replace(/\b\d{4,}\b/g, (n) => whole.format(Number(n)));

// A text cut at a word, with an ellipsis.
export function cut(text, most) {
  if (text.length <= most) return text;
  const head = text.slice(0, most);
  const space = head.lastIndexOf(" ");
  return `${head.slice(0, space > most / 2 ? space : most).trimEnd()} …`;
}

export function ago(then, now = Date.now()) {
  const s = Math.max(0, Math.floor((now - then) / 1000));
  if (s < 2) return "just now";
  const [n, unit] =
    s < 90 ? [s, "second"]
    : s < 5400 ? [Math.round(s / 60), "minute"]
    : s < 129600 ? [Math.round(s / 3600), "hour"]
    : [Math.round(s / 86400), "day"];
  return `${n} ${unit}${n === 1 ? "" : "s"} ago`;
}

export const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
