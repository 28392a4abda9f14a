// What the proxy is asked. The key, where one is needed, lives in this tab alone and travels in a header, never in an address.

const KEY = "windowsill-key";
let asking = null;

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// `askKey` shows the form for the key; it resolves once one was given.
let askKey = async () => {};
export const onKeyNeeded = (ask) => { askKey = ask; };

function headers(more) {
  const key = sessionStorage.getItem(KEY);
  return key ? { ...more, Authorization: `Bearer ${key}` } : { ...more };
}

async function send(path, options) {
  for (;;) {
    const used = sessionStorage.getItem(KEY);
    const response = await fetch(path, { ...options, headers: headers(options.headers), cache: "no-store", redirect: "error" });
    if (response.status !== 401) return response;
    // Several requests may be refused at once: one form serves them all.
    if (sessionStorage.getItem(KEY) === used) {
      asking ??= askKey(Boolean(used)).then((key) => { sessionStorage.setItem(KEY, key); }).finally(() => { asking = null; });
      await asking;
    }
  }
}

async function body(response) {
  const text = await response.text();
  let value = null;
  try { value = JSON.parse(text); } catch { /* not JSON: told below */ }
  if (!response.ok) throw new Refused(response.status, value?.error?.message ?? `status ${response.status}`);
  return value;
}

export const get = async (path, signal) => body(await send(path, { signal, headers: { Accept: "application/json" } }));

export const post = async (path, value) =>
  body(await send(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) }));

// The events of a stream, as they come; each as its field `data` and its `id`.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const blocks = held.split("\n\n");
    held = blocks.pop();
    for (const block of blocks) {
      const field = (name) => block.split("\n").find((line) => line.startsWith(name))?.slice(name.length);
      const data = field("data: ");
      if (data !== undefined) yield { data, id: field("id: ") };
    }
  }
}

// One request to a model, through windowsill as any client has it. `tell` gets the text as it grows.
export async function talk(value, tell) {
  const asked = { ...value, stream: true, stream_options: { include_usage: true } };
  const response = await send("/v1/chat/completions", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked) });
  if (!response.ok) await body(response);
  let [content, usage, ended] = ["", null, false];
  for await (const { data } of events(response)) {
    if (data === "[DONE]") { ended = true; break; }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refused(response.status, chunk.error.message ?? "the reply broke off");
    usage = chunk.usage ?? usage;
    content += chunk.choices?.[0]?.delta?.content ?? "";
    tell(content);
  }
  if (!ended) throw new Refused(response.status, "the reply broke off");
  return { id: response.headers.get("x-windowsill-conversation"), usage, message: { role: "assistant", content } };
}

// The same with another verb, for what is taken back.
export const remove = async (path, value) =>
  body(await send(path, { method: "DELETE", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) }));

export const of = (id, rest = "") => `/windowsill/conversations/${encodeURIComponent(id)}${rest}`;

// Follows the trace until `signal` says stop. A lost connection is taken up again where it broke.
export async function follow(tell, told, signal) {
  let last = null;
  while (!signal.aborted) {
    try {
      const more = last === null ? {} : { "Last-Event-ID": last };
      const response = await send("/windowsill/events?follow", { signal, headers: { Accept: "text/event-stream", ...more } });
      if (!response.ok) throw new Refused(response.status, "the events cannot be followed");
      told("live");
      for await (const { data, id } of events(response)) {
        last = id ?? last;
        tell(JSON.parse(data));
      }
    } catch (e) {
      if (signal.aborted) return;
    }
    told("lost");
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}
