// What the proxy is asked. Where each person has a key, it is sent once: what stands for it from then on is a cookie that no script
// can read. One `api_key` for all lives in this tab alone. Neither ever stands in an address.

const KEY = "windowsill-key";
const SCOPE = "windowsill-scope";
let asking = null;

export class Refused extends Error {
  constructor(status, message, hint) {
    super(message);
    this.status = status;
    this.hint = hint;
  }
}

// `askKey` shows the form for the key; it resolves once one was given.
let askKey = async () => {};
export const onKeyNeeded = (ask) => { askKey = ask; };

function headers(more) {
  const [key, scope] = [sessionStorage.getItem(KEY), sessionStorage.getItem(SCOPE)];
  return { ...more, ...(key && { Authorization: `Bearer ${key}` }), ...(scope && { "x-windowsill-scope": scope }) };
}

// Begins a session with a key. Where there are no sessions, the key itself is kept in this tab.
let logins = 0;
async function login(key) {
  const headers = { "Content-Type": "application/json" };
  const response = await fetch("/windowsill/login", { method: "POST", headers, body: JSON.stringify({ key }), cache: "no-store", redirect: "error" });
  logins += 1;
  sessionStorage.removeItem(SCOPE);
  const whose = response.ok ? await response.json() : {};
  if (whose.key === null) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

// Of an admin: whose conversations are shown.
export function look(scope) {
  sessionStorage.setItem(SCOPE, scope);
  location.reload();
}

export async function logout() {
  await fetch("/windowsill/login", { method: "DELETE", cache: "no-store", redirect: "error" });
  sessionStorage.removeItem(SCOPE);
  location.reload();
}

async function send(path, options) {
  for (;;) {
    const used = logins;
    const response = await fetch(path, { ...options, headers: headers(options.headers), cache: "no-store", redirect: "error" });
    if (response.status !== 401) return response;
    // Several requests may be refused at once: one form serves them all.
    if (logins === used) {
      asking ??= askKey(used > 0).then(login).finally(() => { asking = null; });
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

const written = (method) => async (path, value, signal) =>
  body(await send(path, { method, signal, headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) }));

export const get = async (path, signal) => body(await send(path, { signal, headers: { Accept: "application/json" } }));
export const post = written("POST");
export const put = written("PUT");
// What is taken back.
export const remove = written("DELETE");

// An original, or another file, as it is.
export async function text(path) {
  const response = await send(path, {});
  if (!response.ok) await body(response);
  return response.text();
}

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

// One turn with a model, through windowsill as any client has it. `tell` gets the text and the thoughts as they grow.
export async function talk(value, tell, signal) {
  const asked = { ...value, stream: true, stream_options: { include_usage: true } };
  const response = await send("/v1/chat/completions", { method: "POST", signal, headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked) });
  if (!response.ok) await body(response);
  const id = response.headers.get("x-windowsill-conversation");
  let [content, thoughts, usage, ended] = ["", "", null, false];
  try {
    for await (const { data } of events(response)) {
      if (data === "[DONE]") { ended = true; break; }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refused(response.status, chunk.error.message ?? "the reply broke off");
      usage = chunk.usage ?? usage;
      const delta = chunk.choices?.[0]?.delta ?? {};
      content += delta.content ?? "";
      thoughts += delta.reasoning_content ?? delta.reasoning ?? "";
      tell(content, thoughts);
    }
  } catch (problem) {
    // What was written until somebody stopped it was said.
    if (!signal?.aborted) throw problem;
    ended = true;
  }
  if (!ended) throw new Refused(response.status, "the reply broke off");
  return { id, usage, thoughts, message: { role: "assistant", content } };
}

export const of = (id, rest = "") => `/windowsill/conversations/${encodeURIComponent(id)}${rest}`;

// Whoever wants to know what happens. `live` says whether the events come at all.
const listeners = new Set();
export const heard = { live: false };

export function listen(tell) {
  listeners.add(tell);
  return () => listeners.delete(tell);
}

const tell = (event) => listeners.forEach((listener) => listener(event));

// Follows the trace. A lost connection is taken up again where it broke.
export async function follow() {
  let last = null;
  for (;;) {
    try {
      const more = last === null ? {} : { "Last-Event-ID": last };
      const response = await send("/windowsill/events?follow", { headers: { Accept: "text/event-stream", ...more } });
      if (!response.ok) throw new Refused(response.status, "the events cannot be followed");
      heard.live = true;
      tell(null);
      for await (const { data, id } of events(response)) {
        last = id ?? last;
        tell(JSON.parse(data));
      }
    } catch { /* it is taken up again below */ }
    heard.live = false;
    tell(null);
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}
