"""What OpenResponses' compliance tests ask of a server: `responses.py URL MODEL`. Prints which passed as one JSON object.

The requests are of the same kinds (openresponses.org/compliance): a text, a stream, a system prompt, a tool, a tool in a stream, a
picture, a conversation. Each reply and each event of a stream is held against the types that are made of the specification. A model
this small seldom calls a tool: whether it did is not asked, but what it says is checked alike. Some of its replies have no end of their
own, so each may be MOST tokens long; a reply that reaches that is incomplete, which is as good here.
"""

import json
import sys

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}

# As many tokens as a reply may have.
MOST = 256

# A picture of one pixel.
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"


def said(role, content):
    return {"type": "message", "role": role, "content": content}


def cases():
    weather = {"input": [said("user", "What's the weather like in San Francisco?")], "tools": [TOOL]}
    earlier = [said("user", "My name is Alice."), said("assistant", "Hello Alice!"), said("user", "What is my name?")]
    picture = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": f"data:image/png;base64,{DOT}"}]
    return {
        "text": {"input": [said("user", "Say hello in exactly 3 words.")]},
        "stream": {"input": [said("user", "Count from 1 to 5.")], "stream": True},
        "system prompt": {"input": [said("system", "You are a pirate."), said("user", "Say hello.")]},
        "tool": weather,
        "tool, stream": {**weather, "stream": True},
        "conversation": {"input": earlier},
        "picture": {"input": [said("user", picture)]},
    }


def check(url, model, body):
    import httpx
    from openresponses_types import types

    answer = httpx.post(f"{url}/v1/responses", json={"model": model, "max_output_tokens": MOST, **body}, timeout=300)
    answer.raise_for_status()
    if not body.get("stream"):
        whole = types.ResponseResource.model_validate(answer.json())
        assert whole.output, "no output"
        return whole
    by_name = {}
    for name, of in vars(types).items():
        fields = getattr(of, "model_fields", {})
        if name.endswith("StreamingEvent") and "type" in fields:
            kind = fields["type"].annotation
            values = [v.value for v in kind] if hasattr(kind, "__members__") else list(getattr(kind, "__args__", [])) + [fields["type"].default]
            by_name.update({value: of for value in values if isinstance(value, str)})
    last = None
    for line in answer.text.splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = json.loads(line.removeprefix("data: "))
        of = by_name.get(event["type"])
        # OpenAI's own name for it is another one than the specification's.
        assert of or event["type"].startswith("response.reasoning_text"), f"unknown event {event['type']}"
        checked = of.model_validate(event) if of else None
        last = getattr(checked, "response", last)
    assert last is not None and last.output, "no output"
    return last


def main():
    url, model = sys.argv[1:]
    passed = {}
    for name, body in cases().items():
        try:
            passed[name] = check(url, model, body).status in ("completed", "incomplete")
        except Exception as e:
            passed[name] = False
            print(f"{url}: {name}: {str(e)[:600]}", file=sys.stderr)
    print(json.dumps(passed))


if __name__ == "__main__":
    main()
