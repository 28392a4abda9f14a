"""OpenAI's Agents SDK by the Responses API, streamed, with its own sessions."""

import asyncio

from agents import Agent, OpenAIResponsesModel, Runner, SQLiteSession, function_tool, set_tracing_disabled
from common import BASE, MODEL, MOST, PROMPTS, bash, read_file
from openai import AsyncOpenAI

set_tracing_disabled(True)
model = OpenAIResponsesModel(model=MODEL, openai_client=AsyncOpenAI(base_url=BASE, api_key="none", max_retries=0))
agent = Agent(name="helper", instructions="You are a helper.", model=model, tools=[function_tool(bash), function_tool(read_file)])


async def main():
    session = SQLiteSession("s1")
    for prompt in PROMPTS:
        run = Runner.run_streamed(agent, prompt, session=session, max_turns=MOST)
        async for _ in run.stream_events():
            pass
        print(run.final_output)

asyncio.run(main())
