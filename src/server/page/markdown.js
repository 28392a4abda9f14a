// A model's Markdown as elements: headings, lists, quotes, code, and what is bold, italic or code in a line. Links stay text, pictures are never
// loaded, and HTML is shown as it was written: every piece is a text node.

import { html } from "./lib.js";

const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([^*\n][\s\S]*?)\*\*|(?<![\w*])\*([^*\s][^*\n]*?)\*(?![\w*])/g;

function inline(text) {
  const out = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    out.push(text.slice(at, found.index));
    out.push(found[2] !== undefined ? html`<code>${found[2]}</code>` : found[3] !== undefined ? html`<strong>${found[3]}</strong>` : html`<em>${found[4]}</em>`);
    at = found.index + found[0].length;
  }
  out.push(text.slice(at));
  return out;
}

// Longer ones are shown as plain text: they would be slow to lay out anew with each word.
const LONGEST = 60_000;

export function Markdown({ text }) {
  if (text.length > LONGEST) return html`<p>${text}</p>`;
  const blocks = [];
  const lines = text.split("\n");
  for (let n = 0; n < lines.length;) {
    const line = lines[n];
    const fence = /^\s*(`{3,}|~{3,})/.exec(line);
    if (fence) {
      const code = [];
      for (n += 1; n < lines.length && !lines[n].trim().startsWith(fence[1]); n++) code.push(lines[n]);
      n += 1;
      blocks.push(html`<pre tabindex="0">${code.join("\n")}</pre>`);
      continue;
    }
    const take = (pattern) => {
      const taken = [];
      for (; n < lines.length; n++) {
        const found = pattern.exec(lines[n]);
        if (!found) break;
        taken.push(found[1]);
      }
      return taken;
    };
    const heading = /^(#{1,6})\s+(.*)$/.exec(line);
    if (heading) { blocks.push(html`<p><strong>${inline(heading[2])}</strong></p>`); n += 1; continue; }
    if (/^\s*[-*+]\s+/.test(line)) { blocks.push(html`<ul>${take(/^\s*[-*+]\s+(.*)$/).map((item) => html`<li>${inline(item)}</li>`)}</ul>`); continue; }
    if (/^\s*\d{1,9}[.)]\s+/.test(line)) { blocks.push(html`<ol start=${parseInt(line, 10)}>${take(/^\s*\d{1,9}[.)]\s+(.*)$/).map((item) => html`<li>${inline(item)}</li>`)}</ol>`); continue; }
    if (/^\s*>/.test(line)) { blocks.push(html`<blockquote>${inline(take(/^\s*>\s?(.*)$/).join("\n"))}</blockquote>`); continue; }
    if (!line.trim()) { n += 1; continue; }
    const paragraph = [];
    for (; n < lines.length && lines[n].trim() && !/^\s*([-*+]\s|\d{1,9}[.)]\s|>|`{3,}|~{3,}|#{1,6}\s)/.test(lines[n]); n++) paragraph.push(lines[n]);
    if (!paragraph.length) paragraph.push(lines[n++]);
    blocks.push(html`<p>${inline(paragraph.join("\n"))}</p>`);
  }
  return html`<div class="markdown">${blocks}</div>`;
}
