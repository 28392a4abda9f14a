"""The loops that the documentation of three SDKs shows. KIND: openai, anthropic or ollama."""

import json
import os

from common import BASE, MODEL, MOST, PROMPTS, ROOT, TOOLS, schema

SYSTEM = "You are a helper."


def run(name, arguments):
    return TOOLS[name][0](**arguments)


def with_openai():
    import openai
    client = openai.OpenAI(base_url=BASE, api_key="none", max_retries=0)
    tools = [{"type": "function", "function": {"name": n, "description": "run", "parameters": schema(n)}} for n in TOOLS]
    messages = [{"role": "system", "content": SYSTEM}]
    for prompt in PROMPTS:
        messages.append({"role": "user", "content": prompt})
        for _ in range(MOST):
            message = client.chat.completions.create(model=MODEL, messages=messages, tools=tools).choices[0].message
            messages.append(message)
            for call in message.tool_calls or []:
                said = run(call.function.name, json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
            if not message.tool_calls:
                break
        print(message.content)


def with_anthropic():
    import anthropic
    client = anthropic.Anthropic(base_url=ROOT, api_key="none", max_retries=0)
    tools = [{"name": n, "description": "run", "input_schema": schema(n)} for n in TOOLS]
    system = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    messages = []
    for prompt in PROMPTS:
        messages.append({"role": "user", "content": prompt})
        for _ in range(MOST):
            with client.messages.stream(model=MODEL, max_tokens=500, messages=messages, tools=tools, system=system) as stream:
                reply = stream.get_final_message()
            messages.append({"role": "assistant", "content": reply.content})
            calls = [block for block in reply.content if block.type == "tool_use"]
            if not calls:
                break
            results = [{"type": "tool_result", "tool_use_id": c.id, "content": run(c.name, c.input)} for c in calls]
            messages.append({"role": "user", "content": results})
        print("".join(block.text for block in reply.content if block.type == "text"))


def with_ollama():
    import ollama
    client = ollama.Client(host=ROOT)
    messages = [{"role": "system", "content": SYSTEM}]
    for prompt in PROMPTS:
        messages.append({"role": "user", "content": prompt})
        for _ in range(MOST):
            message = client.chat(model=MODEL, messages=messages, tools=[f for f, _ in TOOLS.values()]).message
            messages.append(message)
            for call in message.tool_calls or []:
                said = run(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "content": said, "tool_name": call.function.name})
            if not message.tool_calls:
                break
        print(message.content)


{"openai": with_openai, "anthropic": with_anthropic, "ollama": with_ollama}[os.environ["KIND"]]()
