// Asks windowsill with OpenAI's own JavaScript SDK: `ask.mjs BASE_URL REQUEST.json HOW`, HOW one of create, events, whole.
//
// Prints what the SDK made of the reply as one JSON object. The SDK's own checks are part of the test: a stream that it
// cannot put together throws.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// Installed beside the cache, not beside this file.
const require = createRequire(pathToFileURL(`${process.env.WINDOWSILL_SDK_JS}/`));
const { OpenAI } = require("openai");

const [base, path, how] = process.argv.slice(2);
const request = JSON.parse(readFileSync(path, "utf8"));
const client = new OpenAI({ baseURL: base, apiKey: "none", maxRetries: 0 });
const ids = new Set();
let chunks = 0;
let [text, calls, finish, usage] = ["", [], null, null];
const streamed = { ...request, stream: true, stream_options: { include_usage: true } };

function whole(reply) {
  const [{ message, finish_reason }] = reply.choices;
  [text, finish, usage] = [message.content ?? "", finish_reason, reply.usage];
  calls = (message.tool_calls ?? []).map((c) => ({ id: c.id, name: c.function.name, arguments: c.function.arguments }));
}

if (how === "whole") {
  const reply = await client.chat.completions.create(request);
  ids.add(reply.id);
  whole(reply);
} else if (how === "create") {
  // Chunk by chunk, added up here.
  for await (const chunk of await client.chat.completions.create(streamed)) {
    chunks += 1;
    ids.add(chunk.id);
    usage = chunk.usage ?? usage;
    for (const { delta, finish_reason } of chunk.choices) {
      text += delta.content ?? "";
      finish = finish_reason ?? finish;
      for (const part of delta.tool_calls ?? []) {
        calls[part.index] ??= { id: part.id, name: part.function.name, arguments: "" };
        calls[part.index].arguments += part.function.arguments ?? "";
      }
    }
  }
} else {
  // The SDK's helper adds up by itself, and is strict about order.
  const stream = client.chat.completions.stream(streamed);
  stream.on("chunk", (chunk) => {
    chunks += 1;
    ids.add(chunk.id);
  });
  whole(await stream.finalChatCompletion());
}

const figures = [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens];
console.log(JSON.stringify({ ids: [...ids].sort(), chunks, text, calls, finish, usage: figures }));
