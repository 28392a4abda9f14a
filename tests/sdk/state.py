"""Has windowsill remember a conversation, with the helpers of the SDKs that do so: `state.py URL HOW MODEL`, HOW one of
anthropic-runner (its tool runner, which goes on in a thread) and openai-previous (`previous_response_id`), or with `-stream`
behind it.

Prints what the client saw as one JSON object: the words of the last reply, and how many requests were sent.
"""

import json
import sys

import httpx2

url, how, model = sys.argv[1:]
streamed = how.endswith("-stream")
sent = []


def counted():
    return httpx2.Client(event_hooks={"request": [lambda request: sent.append(json.loads(request.read()))]})


def anthropic_runner():
    from anthropic import Anthropic, beta_tool

    @beta_tool
    def read_file(path: str) -> str:
        """Reads a file.

        Args:
            path: Where it is.
        """
        return "fn a() {}"

    client = Anthropic(base_url=url, api_key="mine", max_retries=0, http_client=counted())
    asked = [{"role": "user", "content": "Read a.rs."}]
    runner = client.beta.messages.tool_runner(
        model=model, max_tokens=100, system="Be terse.", tools=[read_file], messages=asked, stream=streamed
    )
    last = None
    for step in runner:
        last = step.get_final_message() if streamed else step
    return "".join(block.text for block in last.content if block.type == "text")


def openai_previous():
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="mine", max_retries=0, http_client=counted())
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    tools = [{"type": "function", "name": "read_file", "parameters": schema, "strict": False}]

    def ask(**more):
        request = {"model": model, "instructions": "Be terse.", "tools": tools, **more}
        if not streamed:
            return client.responses.create(**request)
        with client.responses.stream(**request) as stream:
            for _ in stream:
                pass
            return stream.get_final_response()

    first = ask(input="Read a.rs.")
    calls = [item for item in first.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "fn a() {}"} for call in calls]
    return ask(input=results, previous_response_id=first.id).output_text


said = {"anthropic": anthropic_runner, "openai": openai_previous}[how.split("-")[0]]()
threads = [request.get("thread", {}).get("type") or bool(request.get("previous_response_id")) for request in sent]
print(json.dumps({"said": said, "requests": len(sent), "state": threads}))
