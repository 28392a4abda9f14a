import asyncio

from common import BASE, MODEL, MOST, PROMPTS, bash, read_file
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.workflow import Context
from llama_index.llms.openai_like import OpenAILike

# LlamaIndex cuts the history by itself at `context_window`.
model = OpenAILike(model=MODEL, api_base=BASE, api_key="none", is_chat_model=True, is_function_calling_model=True,
                   context_window=131072, max_retries=1)


async def main():
    agent = FunctionAgent(tools=[bash, read_file], llm=model, system_prompt="You are a helper.")
    context = Context(agent)
    for prompt in PROMPTS:
        print(await agent.run(prompt, ctx=context, max_iterations=MOST))

asyncio.run(main())
