"""Drives compaction and state of OpenAI's Responses API with the SDK's own helpers, over a session of many windows:
`openai_state.py URL HOW MODEL`, HOW one of

- within       `context_management` in streams, by a client that prunes before the newest compaction
- compact      `client.responses.compact`, whose output is the next input
- trigger      a last item `compaction_trigger`, as Codex' remote compaction sends it
- previous     `previous_response_id`, then the responses are read again, listed and deleted
- conversation `client.conversations`, with `context_management`
- background   polled, read on from an event, canceled
- agents-input, agents-previous_response_id, agents-auto   openai-agents' OpenAIResponsesCompactionSession; with `auto`, streamed and not
  stored, so that it sends what it has

Prints what came of it as one JSON object.
"""

import json
import sys

from openai import AsyncOpenAI, NotFoundError, OpenAI

url, how, model = sys.argv[1:]
client = OpenAI(base_url=f"{url}/v1", api_key="mine", max_retries=0, timeout=600)
TURNS = 14
WORDS = "ledger fence quorum shard cursor lease writer reader offset segment stream token replay flush table".split()


def text(n):
    """Some 200 tokens, and a fact."""
    row = " ".join(WORDS[(n * 7 + i * (n + 3)) % len(WORDS)] + str(i % 9) for i in range(52))
    return f"Note {n}: gate {n} opens with code {4000 + n}. {row}"


def user(n):
    return {"role": "user", "content": text(n)}


ASK = {"model": model, "instructions": "Be terse.", "max_output_tokens": 24, "temperature": 0}
told = {"turns": 0, "compactions": 0, "largest": 0}


def note(response):
    told["turns"] += 1
    told["largest"] = max(told["largest"], response.usage.input_tokens)
    assert response.status in ("completed", "incomplete"), response.status
    new = [item for item in response.output if item.type == "compaction"]
    told["compactions"] += len(new)
    assert response.output[-1].type == "message", response.output
    return new


def dumped(items):
    return [item.model_dump(exclude_unset=True, warnings=False) for item in items]


def within():
    history = []
    for n in range(TURNS):
        history.append(user(n))
        manage = [{"type": "compaction", "compact_threshold": 650}]
        events, response = [], None
        for event in client.responses.create(**ASK, input=history, context_management=manage, stream=True):
            events.append(event.type)
            if event.type in ("response.completed", "response.incomplete"):
                response = event.response
        if note(response):
            assert "response.compaction.compacting" in events, events
            # What stands before the newest compaction may go.
            history = []
        history += dumped(response.output)


def compact():
    history = []
    for n in range(TURNS):
        history.append(user(n))
        response = client.responses.create(**ASK, input=history)
        note(response)
        history += dumped(response.output)
        if n % 4 == 3:
            done = client.responses.compact(model=model, input=history, instructions="Be terse.")
            kinds = [item.type for item in done.output]
            assert done.object == "response.compaction" and done.usage.total_tokens > 0
            assert kinds == ["message"] * (n + 1) + ["compaction"], kinds
            told["compactions"] += 1
            history = dumped(done.output)


def trigger():
    history = []
    for n in range(TURNS):
        history.append(user(n))
        response = client.responses.create(**ASK, input=history)
        note(response)
        history += dumped(response.output)
        if n % 5 == 4:
            stream = client.responses.create(**ASK, input=history + [{"type": "compaction_trigger"}], stream=True)
            events = list(stream)
            done = [event.item for event in events if event.type == "response.output_item.done"]
            assert [item.type for item in done] == ["compaction"], done
            assert events[-1].type == "response.completed" and len(events[-1].response.output) == 1
            told["compactions"] += 1
            history = [item for item in history if item.get("role") == "user"][-2:] + dumped(done)


def previous():
    last = None
    for n in range(TURNS):
        response = client.responses.create(**ASK, input=text(n), previous_response_id=last)
        note(response)
        last = response.id
    again = client.responses.retrieve(last)
    assert again == response, (again, response)
    items = list(client.responses.input_items.list(last, order="asc", limit=7))
    said = [item for item in items if item.type == "message" and item.role == "user"]
    assert [item.content[0].text for item in said] == [text(n) for n in range(TURNS)]
    told["items"] = len(items)
    client.responses.delete(last)
    missing(lambda: client.responses.retrieve(last), "response_not_found")
    missing(lambda: client.responses.create(**ASK, input="x", previous_response_id=last), "previous_response_not_found")


def missing(ask, code):
    try:
        ask()
    except NotFoundError as error:
        assert error.code == code and error.type == "invalid_request_error" and error.param, error
    else:
        raise AssertionError(f"{code} is not said")


def conversation():
    made = client.conversations.create(items=[{"type": "message", **user(0)}], metadata={"topic": "gates"})
    for n in range(1, TURNS):
        manage = [{"type": "compaction", "compact_threshold": 650}]
        response = client.responses.create(**ASK, input=text(n), conversation=made.id, context_management=manage)
        assert response.conversation.id == made.id
        note(response)
    items = list(client.conversations.items.list(made.id, order="asc", limit=9))
    told["items"] = len(items)
    assert items[0].content[0].text == text(0) and items[-1].id == response.output[-1].id
    assert client.conversations.items.retrieve(items[1].id, conversation_id=made.id).id == items[1].id
    assert client.conversations.update(made.id, metadata={"topic": "doors"}).metadata == {"topic": "doors"}
    assert client.conversations.delete(made.id).deleted
    missing(lambda: client.conversations.retrieve(made.id), "conversation_not_found")


def background():
    import time

    begun = client.responses.create(**ASK, input=text(1), background=True)
    while (now := client.responses.retrieve(begun.id)).status in ("queued", "in_progress"):
        time.sleep(0.1)
    note(now)
    whole = list(client.responses.retrieve(begun.id, stream=True))
    rest = list(client.responses.retrieve(begun.id, stream=True, starting_after=2))
    assert [event.sequence_number for event in rest] == list(range(3, len(whole)))
    # Cut off in the middle, and read on.
    stream = client.responses.create(**{**ASK, "max_output_tokens": 60}, input=text(2), background=True, stream=True)
    seen = [next(stream) for _ in range(3)]
    stream.close()
    more = list(client.responses.retrieve(seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number))
    assert more[0].sequence_number == 3 and more[-1].type in ("response.completed", "response.incomplete")
    note(more[-1].response)
    long = client.responses.create(**{**ASK, "max_output_tokens": 1200}, input=text(3), background=True)
    assert client.responses.cancel(long.id).status == "cancelled"
    assert client.responses.retrieve(long.id).status == "cancelled"


def agents(mode):
    import asyncio

    from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, SQLiteSession, set_tracing_disabled
    from agents.memory import OpenAIResponsesCompactionSession

    set_tracing_disabled(True)
    ours = AsyncOpenAI(base_url=f"{url}/v1", api_key="mine", max_retries=0, timeout=600)

    async def run():
        inner = SQLiteSession("gates")
        session = OpenAIResponsesCompactionSession(
            "gates",
            inner,
            client=ours,
            model=model,
            compaction_mode=mode,
            should_trigger_compaction=lambda context: len(context["compaction_candidate_items"]) >= 4,
        )
        agent = Agent(
            name="terse",
            instructions="Be terse.",
            model=OpenAIResponsesModel(model=model, openai_client=ours),
            # It takes no reply that was cut for an answer: the model stops by itself, at the latest where it repeats a row of words.
            model_settings=ModelSettings(temperature=0, store=mode != "auto", extra_body={"stop": list("\n.1234")}),
        )
        for n in range(TURNS):
            if mode == "auto":
                result = Runner.run_streamed(agent, text(n), session=session)
                async for _ in result.stream_events():
                    pass
            else:
                result = await Runner.run(agent, text(n), session=session)
            told["turns"] += 1
            # Its compactions are counted with the run: the last request is the turn's own.
            told["largest"] = max(told["largest"], result.raw_responses[-1].usage.input_tokens)
            items = await inner.get_items()
            told["compactions"] = max(told["compactions"], sum(item.get("type") == "compaction" for item in items))

    asyncio.run(run())


if how.startswith("agents-"):
    agents(how.removeprefix("agents-"))
else:
    {"within": within, "compact": compact, "trigger": trigger, "previous": previous, "conversation": conversation,
     "background": background}[how]()
print(json.dumps(told))
