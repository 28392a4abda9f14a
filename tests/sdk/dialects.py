"""Asks windowsill in another dialect, with its own Python SDK: `dialects.py URL HOW MODEL`, HOW one of anthropic, responses
and ollama, or with `-stream` behind it. Asks with a tool and a system prompt, and then goes on with what came back.

Prints what the SDK made of both replies as one JSON object. The SDK's own checks are part of the test: a stream that it
cannot put together raises.
"""

import json
import sys

url, how, model = sys.argv[1:]
dialect, _, streamed = how.partition("-")
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
FUNCTION = {"name": "read_file", "description": "Reads a file."}


def anthropic_turns():
    from anthropic import Anthropic

    client = Anthropic(base_url=url, api_key="none", max_retries=0)
    tools = [{**FUNCTION, "input_schema": SCHEMA}]
    messages = [{"role": "user", "content": "Read a.rs."}]

    def ask():
        request = {"model": model, "max_tokens": 100, "system": "Be terse.", "messages": messages, "tools": tools}
        if not streamed:
            return client.messages.create(**request)
        with client.messages.stream(**request) as stream:
            for _ in stream:
                pass
            return stream.get_final_message()

    def said(message):
        text = "".join(b.text for b in message.content if b.type == "text")
        calls = [[b.name, b.input] for b in message.content if b.type == "tool_use"]
        usage = message.usage
        return [text, calls, message.stop_reason, usage.input_tokens + usage.cache_read_input_tokens, usage.output_tokens]

    first = ask()
    results = [{"type": "tool_result", "tool_use_id": b.id, "content": "fn a() {}"} for b in first.content if b.type == "tool_use"]
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    return [said(first), said(ask())]


def responses_turns():
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    tools = [{"type": "function", **FUNCTION, "parameters": SCHEMA, "strict": False}]
    items = [{"role": "user", "content": "Read a.rs."}]

    def ask():
        request = {"model": model, "instructions": "Be terse.", "input": items, "tools": tools, "store": False}
        if not streamed:
            return client.responses.create(**request)
        with client.responses.stream(**request) as stream:
            for _ in stream:
                pass
            return stream.get_final_response()

    def said(response):
        calls = [[i.name, json.loads(i.arguments)] for i in response.output if i.type == "function_call"]
        return [response.output_text, calls, response.status, response.usage.input_tokens, response.usage.output_tokens]

    first = ask()
    items += [i.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for i in first.output]
    items += [{"type": "function_call_output", "call_id": i.call_id, "output": "fn a() {}"} for i in first.output if i.type == "function_call"]
    return [said(first), said(ask())]


def ollama_turns():
    from ollama import Client

    client = Client(host=url)
    tools = [{"type": "function", "function": {**FUNCTION, "parameters": SCHEMA}}]
    messages = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Read a.rs."}]

    def ask():
        reply = client.chat(model=model, messages=messages, tools=tools, stream=bool(streamed))
        text, calls, last = "", [], None
        for last in reply if streamed else [reply]:
            text += last.message.content or ""
            calls += last.message.tool_calls or []
        assert last.done
        return text, calls, last

    def said(text, calls, last):
        made = [[c.function.name, dict(c.function.arguments)] for c in calls]
        return [text, made, last.done_reason, last.prompt_eval_count, last.eval_count]

    first = ask()
    messages.append({"role": "assistant", "content": first[0], "tool_calls": [c.model_dump() for c in first[1]]})
    messages.extend({"role": "tool", "content": "fn a() {}", "tool_name": c.function.name} for c in first[1])
    return [said(*first), said(*ask())]


turns = {"anthropic": anthropic_turns, "responses": responses_turns, "ollama": ollama_turns}
print(json.dumps(turns[dialect]()))
