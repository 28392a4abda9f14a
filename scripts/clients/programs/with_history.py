"""Goes on with the conversation of `cloud`, two turns. KIND says by which library; see `histories`."""

import asyncio
import os
import sys

import cloud
from common import BASE, MODEL, ROOT

KIND, MOST, ASKS = os.environ["KIND"], 8, ("Go on.", "And now?")
FUNCTIONS = [{"name": name, "description": "Reads.", "parameters": cloud.SCHEMA} for name in cloud.MCP]


def anthropic():
    from anthropic import Anthropic
    client, messages = Anthropic(base_url=ROOT, api_key="none", max_retries=0), cloud.anthropic()
    tools = [{"name": f["name"], "input_schema": f["parameters"]} for f in FUNCTIONS] + [{"type": "web_search_20250305", "name": "web_search"}]
    for ask in ASKS:
        messages.append({"role": "user", "content": ask})
        with client.messages.stream(model=MODEL, max_tokens=MOST, messages=messages, tools=tools) as stream:
            reply = stream.get_final_message()
        messages.append({"role": "assistant", "content": reply.content or "."})
        print(reply.stop_reason)


def openai():
    from openai import OpenAI
    client, messages = OpenAI(base_url=BASE, api_key="none", max_retries=0), cloud.openai()
    for ask in ASKS:
        messages.append({"role": "user", "content": ask})
        tools = [{"type": "function", "function": f} for f in FUNCTIONS]
        reply = client.chat.completions.create(model=MODEL, messages=messages, tools=tools, max_completion_tokens=MOST).choices[0]
        messages.append(reply.message)
        print(reply.finish_reason)


def responses():
    from openai import OpenAI
    client, items = OpenAI(base_url=BASE, api_key="none", max_retries=0), cloud.responses()
    tools = [{"type": "function", **f, "strict": False} for f in FUNCTIONS] + [{"type": "web_search"}, {
        "type": "mcp", "server_label": "alpha", "server_url": "https://example.invalid", "require_approval": "never"}]
    for ask in ASKS:
        items.append({"role": "user", "content": ask})
        with client.responses.stream(model=MODEL, input=items, tools=tools, max_output_tokens=MOST, store=False) as stream:
            reply = stream.get_final_response()
        items += reply.output
        print(reply.status)


def ollama():
    from ollama import Client
    client, messages = Client(host=ROOT), cloud.ollama()
    for ask in ASKS:
        messages.append({"role": "user", "content": ask})
        tools = [{"type": "function", "function": f} for f in FUNCTIONS]
        reply = client.chat(model=MODEL, messages=messages, tools=tools, options={"num_predict": MOST})
        messages.append(reply.message)
        print(reply.done_reason)


async def agents():
    from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, set_tracing_disabled
    from agents.mcp import MCPServerStdio
    from openai import AsyncOpenAI
    set_tracing_disabled(True)
    model = OpenAIResponsesModel(model=MODEL, openai_client=AsyncOpenAI(base_url=BASE, api_key="none", max_retries=0))
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mcp_server.py")
    async with MCPServerStdio({"command": sys.executable, "args": [program, "alpha"]}) as server:
        agent = Agent(name="helper", instructions="Help.", model=model, mcp_servers=[server], model_settings=ModelSettings(max_tokens=MOST))
        items = cloud.responses()
        for ask in ASKS:
            run = Runner.run_streamed(agent, [*items, {"role": "user", "content": ask}], max_turns=2)
            async for _ in run.stream_events():
                pass
            items = run.to_input_list()
            print("done")


def langchain():
    from langchain_openai import ChatOpenAI
    model = ChatOpenAI(model=MODEL, base_url=BASE, api_key="none", max_retries=0, max_tokens=MOST)
    model, messages = model.bind_tools([{"type": "function", "function": f} for f in FUNCTIONS]), cloud.openai()
    for ask in ASKS:
        messages.append({"role": "user", "content": ask})
        reply = model.invoke(messages)
        messages.append(reply)
        print(reply.response_metadata["finish_reason"])


def pydantic_ai():
    from pydantic_ai import Agent, BinaryContent
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ThinkingPart, ToolCallPart, ToolReturnPart, UserPromptPart
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    import base64
    seen = [BinaryContent(base64.b64decode(cloud.PIXEL), media_type="image/png"), BinaryContent(base64.b64decode(cloud.PDF), media_type="application/pdf")]
    history = [ModelRequest([UserPromptPart([*seen, cloud.ASK])]), ModelResponse([ThinkingPart("I look."), TextPart(cloud.SAW)]),
               ModelRequest([UserPromptPart("Read both.")]), ModelResponse([ToolCallPart(name, {"path": "a.txt"}, f"call_{n}") for n, name in enumerate(cloud.MCP)]),
               ModelRequest([ToolReturnPart(name, "read it", f"call_{n}") for n, name in enumerate(cloud.MCP)]), ModelResponse([TextPart("One is there.")])]
    agent = Agent(OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE, api_key="none")), model_settings={"max_tokens": MOST})
    for ask in ASKS:
        result = agent.run_sync(ask, message_history=history)
        history = result.all_messages()
        print("done")


def main():
    said = globals()[KIND]()
    if asyncio.iscoroutine(said):
        asyncio.run(said)


main()
