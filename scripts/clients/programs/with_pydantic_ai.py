from common import BASE, MODEL, PROMPTS, bash, read_file
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE, api_key="none"))
agent = Agent(model, tools=[bash, read_file], instructions="You are a helper.")
history = None
for prompt in PROMPTS:
    result = agent.run_sync(prompt, message_history=history)
    history = result.all_messages()
    print(result.output)
