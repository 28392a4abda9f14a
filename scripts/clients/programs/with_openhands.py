from common import BASE, MODEL, MOST, PROJECT, PROMPTS
from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool
from pydantic import SecretStr

llm = LLM(model="openai/" + MODEL, base_url=BASE, api_key=SecretStr("none"), num_retries=1, usage_id="agent")
agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)])
conversation = Conversation(agent=agent, workspace=PROJECT, max_iteration_per_run=MOST)
for prompt in PROMPTS:
    conversation.send_message(prompt)
    conversation.run()
