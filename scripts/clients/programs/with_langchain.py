"""KIND=ollama: by Ollama's API."""

import os

from common import BASE, MODEL, PROMPTS, ROOT, bash
from deepagents import create_deep_agent
from langgraph.checkpoint.memory import InMemorySaver

if os.environ.get("KIND") == "ollama":
    from langchain_ollama import ChatOllama
    model = ChatOllama(model=MODEL, base_url=ROOT)
else:
    from langchain_openai import ChatOpenAI
    model = ChatOpenAI(model=MODEL, base_url=BASE, api_key="none", max_retries=1)
agent = create_deep_agent(model=model, tools=[bash], system_prompt="You are a helper.", checkpointer=InMemorySaver())
for prompt in PROMPTS:
    result = agent.invoke({"messages": [{"role": "user", "content": prompt}]}, {"configurable": {"thread_id": "t1"}, "recursion_limit": 300})
    print(result["messages"][-1].content)
