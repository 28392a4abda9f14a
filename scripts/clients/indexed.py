"""Sessions of ten tool steps with tools and system text by index, before a scripted model that looks up what it is not shown.

The yardstick is the same session through windowsill with all tools in an endless window. Of each session it is asked whether it ended
in the same way, whether every call that reached the client is valid by the client's own schema, and what the server evaluated."""

import json
import re
from dataclasses import asdict, dataclass, replace

import install
import judge
import script
import session
from servers import tokens

INDEX = "windowsill_tool"
WINDOWS = (8192, 16_384)
MOST = 1.15  # tokens that the server may evaluate, of those in an endless window
SLOTS = 4  # prompts that a server keeps: llama-server's own default
SETTINGS = {"WINDOWSILL_CONTEXT_TOOLS": "auto", "WINDOWSILL_CONTEXT_SYSTEM": "index"}


class Lookup(script.Script):
    """Calls one tool a turn. What is not shown it looks up, by name or by a search in turns, and calls it through the index."""

    def __init__(self, workdir, calls):
        super().__init__("tools", workdir, len(calls), 0)
        self.calls, self.done, self.lookups = calls, 0, 0

    def answer(self, messages, tools):
        key = script.asked(messages)
        if not tools or key not in script.PROMPT:
            return script.Answer(f"Scripted title of {key[:30]}")
        with self.lock:
            # One that was not called is called again.
            again = messages and any(t.startswith("[it was not called") for t in script.texts(messages[-1]))
            self.done -= bool(again and self.done)
            if self.done >= len(self.calls):
                return script.Answer(f"Scripted final answer to {key[:40]} after {self.done} turns \u2014 done.\n")
            return self.step(self.done, messages, tools)

    def step(self, step, messages, tools):
        wanted = self.calls[step]
        shown = next((tool for tool in tools if tool[0] == wanted), None)
        known = shown or told(messages, wanted)
        if not known:
            if not any(name == INDEX for name, _, _ in tools):
                raise RuntimeError(f"there is no tool {wanted}")
            self.lookups += 1
            query = {"query": re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", wanted)} if self.lookups % 2 == 0 else {"name": wanted}
            return script.Answer(calls=[(f"call_look{self.lookups:03}", INDEX, json.dumps(query), None)])
        self.done += 1
        name, schema, namespace = known
        arguments = self.fill_all(schema, step)
        if "content" in arguments:  # a tool that writes; the file that is read stays
            arguments = {k: v.replace("notes.txt", f"out_{step}.txt") if isinstance(v, str) else v for k, v in arguments.items()}
        if not shown:
            name, arguments, namespace = INDEX, {"name": name, "arguments": arguments}, None
        text = ["", f"I'll look at step {step} \u2014 caf\u00e9.\n\n"][step % 2]
        return script.Answer(text, [(f"call_{step:03}", name, json.dumps(arguments), namespace)])


def told(messages, wanted):
    """The tool of that name, as an answer of the index has it."""
    for message in messages:
        for line in (line for text in script.texts(message) for line in text.splitlines() if line.startswith('{"name":')):
            try:
                tool = json.loads(line)
            except ValueError:
                continue
            if tool.get("name") == wanted:
                return wanted, tool.get("parameters") or {}, None
    return None


@dataclass
class Row:
    """One line of the table."""

    client: str
    title: str
    window: int
    sent: int  # tokens of the client's own tools
    listed: int  # of those that stand in the prompt instead
    system: int  # of the client's system text
    left: int  # of it in the prompt
    calls: int  # that reached the client
    invalid: list
    lookups: int
    evaluated: int
    ideal: int
    differs: str

    def misses(self):
        """The bars that were missed, in words."""
        return [words for missed, words in (
            (self.differs, f"the outcome differs: {self.differs}"),
            (self.invalid, f"invalid calls: {'; '.join(self.invalid[:3])}"),
            (self.evaluated > MOST * self.ideal, f"{self.evaluated} tokens evaluated, {self.ideal} in an endless window"),
        ) if missed]


def sessions(client, home, work, windowsill, keep=None):
    """The rows of a client: the endless session, then each window."""
    client = replace(client, commands=client.commands[:1], turns=len(client.calls), again=0)
    scripts = []

    def said(folder):
        scripts.append(Lookup(folder, client.calls))
        return scripts[-1]
    rows, ideal = [], None
    for window in (session.ROOMY, *WINDOWS):
        settings = SETTINGS if ideal else {}
        ran = session.run(client, home, work, window, windowsill, said, settings)
        if keep:
            session.keep(ran, keep / client.name / f"index-{window}")
        ideal = ideal or ran
        rows.append(row(client, ideal, ran, scripts[-1].lookups, home))
    return rows


def row(client, ideal, ran, lookups, home):
    main = [e for e in ran.asked if judge.of_session(client, e)]
    prompts = [e for e in ran.forwarded if not e.get("refused")]
    first = next((e["body"] for e in prompts if not e["own"] and script.tools_of(e["body"].get("tools"))), {"messages": []})
    asked = next((e["body"] for e in ideal.forwarded if not e["own"] and script.tools_of(e["body"].get("tools"))), {"messages": []})
    calls = made(main)
    return Row(client.name, client.title, ran.window, size(asked.get("tools")), size(first.get("tools")), system(asked), system(first),
               len(calls), invalid(main, calls, home), lookups, evaluated(prompts), evaluated([e for e in ideal.forwarded if not e.get("refused")]),
               outcome(client, ideal, ran, calls))


def size(value):
    return tokens(value) if value else 0


def system(body):
    """Tokens of the messages that lead a prompt."""
    lead = []
    for message in body["messages"]:
        if message.get("role") not in ("system", "developer"):
            break
        lead.append(message)
    return size(lead)


def outcome(client, ideal, ran, calls):
    """What is not as in the endless session."""
    if len(calls) != len(client.calls):
        refused = next((f"{e['status']}: {e.get('reply', '')[:200]}" for e in ran.asked if (e["status"] or 0) >= 400 and e["method"] == "POST"), "")
        return f"{len(calls)} of {len(client.calls)} calls {refused}"
    if [name for name, _ in calls.values()] != list(client.calls):
        return "other calls"
    return judge.difference(ideal, ran)


def made(asked):
    """{id: (name, arguments)} of all calls that the client got, as it sends them back."""
    out = {}
    for message in (m for e in asked for m in judge.messages(e["body"])):
        for call in message.get("tool_calls") or []:
            out.setdefault(call["id"], (call["function"]["name"], call["function"]["arguments"]))
        if message.get("type") == "function_call":
            out.setdefault(message["call_id"], (message["name"], message["arguments"]))
        for block in message["content"] if isinstance(message.get("content"), list) else []:
            if isinstance(block, dict) and block.get("type") == "tool_use":
                out.setdefault(block["id"], (block["name"], block["input"]))
    return out


def invalid(asked, calls, home):
    """What is wrong with calls by the client's own schemas."""
    validator = install.library(home, "jsonschema")
    tools = {name: schema for e in asked for name, schema, _ in script.tools_of(e["body"].get("tools"))}
    out = []
    for name, arguments in calls.values():
        try:
            value = json.loads(arguments) if isinstance(arguments, str) else arguments
            if name not in tools:
                raise ValueError("the client has no such tool")
            validator.validate(value, tools[name])
        except (ValueError, validator.ValidationError) as error:
            out.append(f"{name}: {str(error).splitlines()[0]}")
    return out


def evaluated(prompts):
    """Tokens that a server evaluates of these prompts: what is not the beginning of one that it still holds."""
    held, all_ = [], 0
    for body in (e["body"] for e in prompts):
        text = json.dumps([body.get("tools"), body.get("system"), *body.get("messages", [])], ensure_ascii=False)
        shared = max((common(text, before) for before in held), default=0)
        all_ += len(text) - shared
        held = [before for before in held if not text.startswith(before[:-1])][-(SLOTS - 1):] + [text]
    return all_ // 4


def common(a, b):
    """Characters with which both begin."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle - 1)
    return low


def line(r):
    """One row for a terminal."""
    return (f"  {r.client:8} {r.window:9,}  tools {r.sent} -> {r.listed}  system {r.system} -> {r.left}  calls {r.calls}  lookups {r.lookups}"
            f"  evaluated {r.evaluated} of {r.ideal} ({r.evaluated / max(1, r.ideal):.2f})  {'ok' if not r.misses() else 'MISSED: ' + '; '.join(r.misses())}")


def table(rows):
    """The table of docs/clients.md: rows without the yardstick's own."""
    out = ["| client | window | tools | system text | calls, all valid | lookups | evaluated |", "|---|---|---|---|---|---|---|"]
    for r in rows:
        if r.window == session.ROOMY:
            continue
        out.append(f"| {r.title} | {r.window:,} | {r.sent:,} → {r.listed:,} | {r.system:,} → {r.left:,} | {r.calls - len(r.invalid)} of {r.calls} | {r.lookups} "
                   f"| {r.evaluated:,} of {r.ideal:,}: {r.evaluated / max(1, r.ideal):.2f} |")
    return "\n".join(out) + "\n"


def plain(rows):
    return [asdict(r) for r in rows]
