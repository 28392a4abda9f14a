"""Asks windowsill with OpenAI's own Python SDK: `ask.py BASE_URL REQUEST.json HOW`, HOW one of create, events, whole.

Prints what the SDK made of the reply as one JSON object. The SDK's own checks are part of the test: a stream that it cannot
put together raises.
"""

import json
import sys

from openai import OpenAI

base, path, how = sys.argv[1:]
with open(path, encoding="utf-8") as file:
    request = json.load(file)
client = OpenAI(base_url=base, api_key="none", max_retries=0)
ids, chunks = set(), 0

if how == "whole":
    reply = client.chat.completions.create(**request)
    ids.add(reply.id)
elif how == "create":
    # Chunk by chunk, added up here.
    text, calls, finish, usage = "", {}, None, None
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(**request, stream=True, stream_options=options):
        chunks += 1
        ids.add(chunk.id)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for part in choice.delta.tool_calls or []:
                call = calls.setdefault(part.index, {"id": part.id, "name": part.function.name, "arguments": ""})
                call["arguments"] += part.function.arguments or ""
else:
    # The SDK's helper adds up by itself, and is strict about order.
    with client.chat.completions.stream(**request, stream_options={"include_usage": True}) as stream:
        for event in stream:
            if event.type == "chunk":
                chunks += 1
                ids.add(event.chunk.id)
        reply = stream.get_final_completion()

if how != "create":
    choice = reply.choices[0]
    text, finish, usage = choice.message.content or "", choice.finish_reason, reply.usage
    calls = {
        n: {"id": c.id, "name": c.function.name, "arguments": c.function.arguments}
        for n, c in enumerate(choice.message.tool_calls or [])
    }

figures = [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]
print(json.dumps({"ids": sorted(ids), "chunks": chunks, "text": text, "calls": list(calls.values()), "finish": finish, "usage": figures}))
