from common import BASE, MODEL, MOST, PROMPTS, bash, read_file
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

model = OpenAIServerModel(model_id=MODEL, api_base=BASE, api_key="none")
agent = ToolCallingAgent(tools=[tool(bash), tool(read_file)], model=model, max_steps=MOST)
for at, prompt in enumerate(PROMPTS):
    print(agent.run(prompt, reset=at == 0))
