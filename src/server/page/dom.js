// Elements, built from text. Nothing here parses HTML: whatever comes from a conversation is only ever a text node.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "width") node.style.width = value;
    else if (name === "left") node.style.left = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export const h = (tag, props, ...children) => filled(document.createElement(tag), props, children);

export function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes ?? {})) node.setAttribute(name, String(value));
  node.append(...children.flat());
  return node;
}

const whole = new Intl.NumberFormat("en-US");
export const count = (n) => (typeof n === "number" ? whole.format(Math.round(n)) : "–");
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
export const percent = (p) => (typeof p === "number" ? `${Math.round(p * 100)} %` : "–");

export function ago(then, now = Date.now()) {
  const seconds = Math.max(0, Math.floor((now - then) / 1000));
  if (seconds < 2) return "just now";
  const [n, unit] =
    seconds < 90 ? [seconds, "second"]
    : seconds < 5400 ? [Math.round(seconds / 60), "minute"]
    : seconds < 129600 ? [Math.round(seconds / 3600), "hour"]
    : [Math.round(seconds / 86400), "day"];
  return `${n} ${unit}${n === 1 ? "" : "s"} ago`;
}
