#!/usr/bin/env python3
"""Replays a recorded agent session request by request, as the agent's client sent it, and tabulates what became of it.

    replay.py count  SESSION --url URL --out COUNTS               tokens of every request's whole history
    replay.py run    SESSION --url URL [--unmanaged] --counts COUNTS --label NAME --out RESULT
    replay.py table  RESULT RESULT… --window N

Every request sends the recorded history up to the next assistant message, whatever was answered before, and asks for a
few tokens; a request that fails counts as failed and the session goes on, as an agent's would. `--url` is a windowsill that
serves a model itself; with `--unmanaged` it is told to leave the requests alone (`x-windowsill: off`), and they go to the
model as they are. Standard library only.
"""

import argparse
import http.client
import json
import statistics
import sys
import time
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 300  # one reply; a full window takes about 20 s on one old core


# What was done, in the words of docs/glossary.md.
DONE = {"evict": "preview", "summarize": "fold", "truncate": "cut", "emergency": "after a refusal"}


class Stop(Exception):
    """What ends the replay, in words for the person who started it."""


# --- HTTP ------------------------------------------------------------------------------------------------------------


def call(url: str, path: str, body: object = None, more: dict | None = None) -> http.client.HTTPResponse:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_SECONDS)
    payload = None if body is None else json.dumps(body).encode()
    headers = {**({"content-type": "application/json"} if payload else {}), **(more or {})}
    try:
        connection.request("POST" if payload else "GET", parts.path.rstrip("/") + path, payload, headers)
        return connection.getresponse()
    except OSError as error:
        raise Stop(f"{url}{path}: {error}") from error


def call_json(url: str, path: str, body: object = None) -> dict:
    reply = call(url, path, body)
    text = reply.read()
    if reply.status != 200:
        raise Stop(f"{url}{path} answered {reply.status}: {text[:300].decode(errors='replace')}")
    return json.loads(text)


def evaluated_so_far(url: str) -> int:
    """Prompt tokens that were evaluated for managed requests, and for what windowsill itself asked: summaries count too."""
    sums = {"prompt": 0, "cached": 0}
    for line in call(url, "/metrics").read().decode().splitlines():
        name, _, value = line.partition(" ")
        for kind in sums:
            if name.startswith("windowsill_tokens_total{") and f'kind="{kind}"' in name:
                sums[kind] += int(float(value))
    return sums["prompt"] - sums["cached"]


def events(reply: http.client.HTTPResponse):
    """The JSON of each server-sent event, up to [DONE]."""
    for line in reply:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield json.loads(data)


# --- one turn --------------------------------------------------------------------------------------------------------


def turns_of(session: dict, limit: int | None) -> list[int]:
    """Where the agent's model was asked: the index of every assistant message that follows some history."""
    turns = [i for i, message in enumerate(session["messages"]) if message["role"] == "assistant" and i > 0]
    return turns[:limit]


def take_turn(url: str, session: dict, end: int, max_tokens: int, headers: dict) -> dict:
    body = {
        "model": "smollm2",
        "messages": session["messages"][:end],
        "tools": session["tools"],
        "max_tokens": max_tokens,
        "temperature": 0,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.monotonic()
    reply = call(url, "/v1/chat/completions", body, headers)
    mine = {name.lower()[13:]: value for name, value in reply.getheaders() if name.lower().startswith("x-windowsill-")}
    turn = {"status": reply.status, "headers": mine, "answered": False, "first_s": None}
    if reply.status == 200:
        read_answer(reply, turn, started)
    else:
        turn["error"] = error_text(reply.read())
    turn["seconds"] = time.monotonic() - started
    reply.close()
    return turn


def read_answer(reply: http.client.HTTPResponse, turn: dict, started: float) -> None:
    try:
        for event in events(reply):
            if "error" in event:
                turn["error"] = str(event["error"].get("message", event["error"]))
                return
            for choice in event.get("choices", []):
                delta = choice.get("delta", {})
                if turn["first_s"] is None and (delta.get("content") or delta.get("tool_calls")):
                    turn["first_s"] = time.monotonic() - started
                turn["answered"] = turn["answered"] or choice.get("finish_reason") is not None
            if event.get("usage"):
                turn["prompt_tokens"] = event["usage"]["prompt_tokens"]
            if event.get("timings"):
                turn["evaluated"], turn["cached"] = event["timings"]["prompt_n"], event["timings"].get("cache_n", 0)
    except (OSError, http.client.HTTPException, ValueError) as error:
        turn["answered"], turn["error"] = False, f"the reply broke off: {error}"


def error_text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


# --- the progress bar ------------------------------------------------------------------------------------------------


class Bar:
    """One line that is redrawn on a terminal; elsewhere, a line every tenth request."""

    WIDTH = 30

    def __init__(self, label: str, total: int):
        self.label, self.total, self.live = label, total, sys.stderr.isatty()

    def show(self, done: int, note: str) -> None:
        if not self.live and done % 10 and done != self.total:
            return
        filled = self.WIDTH * done // max(self.total, 1)
        line = f"{self.label:<12} {'█' * filled}{'░' * (self.WIDTH - filled)} {done:>3}/{self.total}  {note}"
        print(f"\r\x1b[2K{line[:118]}" if self.live else line, end="" if self.live else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.live:
            print(file=sys.stderr)


# --- the three commands ----------------------------------------------------------------------------------------------


def count(args: argparse.Namespace) -> None:
    session = load(args.session)
    turns, counts = turns_of(session, args.turns), []
    bar = Bar("counting", len(turns))
    for done, end in enumerate(turns, 1):
        body = {"messages": session["messages"][:end], "tools": session["tools"]}
        # What would be forwarded is less: these are about the history as the client has it.
        counts.append(call_json(args.url, "/v1/chat/completions/input_tokens", body)["original_input_tokens"])
        bar.show(done, f"{counts[-1]:,} tokens")
    bar.end()
    save(args.out, counts)


def run(args: argparse.Namespace) -> None:
    session, counts = load(args.session), load(args.counts)
    turns = turns_of(session, args.turns)[: len(counts)]
    bar, results = Bar(args.label, len(turns)), []
    headers = {"x-windowsill": "off"} if args.unmanaged else {}
    started = time.monotonic()
    bar.show(0, "")
    for done, (end, sent) in enumerate(zip(turns, counts), 1):
        turn = take_turn(args.url, session, end, args.max_tokens, headers)
        turn["sent"] = sent
        results.append(turn)
        bar.show(done, note_of(turn))
    bar.end()
    seconds = time.monotonic() - started
    evaluated = sum(turn.get("evaluated", 0) for turn in results) if args.unmanaged else evaluated_so_far(args.url)
    facts = kept(args.url, session, turns, results, args.unmanaged)
    done = rewrites(args.url, results, args.unmanaged)
    question = None if args.unmanaged else asked(args.url, session, turns, results, args.max_tokens)
    result = {"label": args.label, "turns": results, "seconds": seconds, "evaluated": evaluated, "facts": facts, "rewrites": done}
    save(args.out, {**result, "question": question})


def asked(url: str, session: dict, turns: list[int], results: list[dict], max_tokens: int) -> dict | None:
    """The session's question about something that left the prompt, asked without the recall tool: the lines that then answer it there."""
    question = session.get("question")
    answered = [(end, turn) for end, turn in zip(turns, results) if turn["answered"]]
    if not question or not answered:
        return None
    end, last = answered[-1]
    view = f"/windowsill/conversations/{last['headers']['conversation']}/view"
    is_read = any(question["evidence"] in str(message["content"]) for message in session["messages"][:end])
    if not is_read or question["evidence"] in strings(call_json(url, view)):
        return None  # It has not been read yet, or it has not left the prompt: there is nothing to show.
    messages = [*session["messages"][:end], {"role": "user", "content": question["text"]}]
    take_turn(url, {**session, "messages": messages}, end + 1, max_tokens, {"x-windowsill-recall": "off"})
    lines = strings(call_json(url, view)).splitlines()
    there = dict.fromkeys(line.strip() for line in lines if question["evidence"] in line)
    return {"text": question["text"], "lines": list(there)}


def facts_of(session: dict, end: int) -> dict[int, str]:
    """What an agent learned: the longest line of each tool result before message `end`, by the message's index."""
    facts = {}
    for index, message in enumerate(session["messages"][:end]):
        if message["role"] == "tool":
            lines = [line.strip() for line in str(message["content"]).splitlines()]
            facts[index] = max(lines, key=len, default="")
    return {index: line for index, line in facts.items() if line}


def kept(url: str, session: dict, turns: list[int], results: list[dict], unmanaged: bool) -> dict:
    """How many facts the model has at the end: those in the last prompt that was answered, and those it gets word for word by recall."""
    facts = facts_of(session, turns[-1])
    answered = [(end, turn) for end, turn in zip(turns, results) if turn["answered"]]
    out = {"of": len(facts), "in_prompt": 0, "recalled": 0}
    if not answered:
        return out
    end, last = answered[-1]
    if unmanaged:
        out["in_prompt"] = sum(index < end for index in facts)
        return out
    conversation = last["headers"]["conversation"]
    view = strings(call_json(url, f"/windowsill/conversations/{conversation}/view"))
    for index, line in facts.items():
        if line in view:
            out["in_prompt"] += 1
        elif line in strings(call_json(url, f"/windowsill/records/{conversation}:{index}")):
            out["recalled"] += 1
    return out


def rewrites(url: str, results: list[dict], unmanaged: bool) -> dict:
    """What was done to the conversation, once the record has its last request."""
    answered = [turn for turn in results if turn["answered"]]
    if unmanaged or not answered:
        return {"compactions": 0, "layers": {}}
    conversation = answered[-1]["headers"]["conversation"]
    for _ in range(50):
        did = call_json(url, f"/windowsill/conversations/{conversation}/insight")["did"]
        if did["requests"] >= len(answered):
            break
        time.sleep(0.1)
    return did


def strings(value: object) -> str:
    """All texts in a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return "\n".join(strings(item) for item in value)
    return value if isinstance(value, str) else ""


def note_of(turn: dict) -> str:
    if not turn["answered"]:
        return f"{turn['sent']:,} tokens sent, not answered: {turn.get('error', turn['status'])}"
    action = turn["headers"].get("action", "none")
    return f"{turn['sent']:,} tokens sent, {forwarded(turn):,} forwarded" + (f" ({action})" if action != "none" else "")


def forwarded(turn: dict) -> int:
    """Tokens of the prompt that reached the server: what the server says, else what the proxy says."""
    return turn.get("prompt_tokens") or int(turn["headers"].get("prompt-tokens", 0))


# What README calls the two ways.
HEADINGS = {"direct": "without", "windowsill": "with windowsill"}


def table(args: argparse.Namespace) -> None:
    results = [load(path) for path in args.results]
    for result in results:
        result["label"] = HEADINGS.get(result["label"], result["label"])
    rows = [["", *(result["label"] for result in results)]]
    columns = [figures(result, args.window) for result in results]
    rows += [[name, *(column[name] for column in columns)] for name in columns[0]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for index, row in enumerate(rows):
        print("  " + row[0].ljust(widths[0]) + "".join("   " + cell.rjust(width) for cell, width in zip(row[1:], widths[1:])))
        if index == 0:
            print("  " + "─" * (sum(widths) + 3 * (len(widths) - 1)))
    for result in results:
        failure = next((turn for turn in result["turns"] if not turn["answered"]), None)
        if failure:
            position = result["turns"].index(failure) + 1
            print(f"\n  {result['label']}: the first request without an answer was {position}: {failure.get('error', failure['status'])}")
    for question in filter(None, (result.get("question") for result in results)):
        print(f"\n  Then a question about something that had left the prompt: {question['text']}")
        came = "This came with it, and no tool was called:" if question["lines"] else "Nothing that answers it came with it."
        print("  " + "\n    ".join([came, *question["lines"]]))


def figures(result: dict, window: int) -> dict[str, str]:
    turns = result["turns"]
    answered = [turn for turn in turns if turn["answered"]]
    largest = max((forwarded(turn) if turn["answered"] else refused(turn) for turn in turns), default=0)
    waits = [turn["first_s"] for turn in answered if turn["first_s"] is not None]
    # The first rows are those of README's table, in its words.
    return {
        "requests answered": f"{len(answered)} of {len(turns)}",
        "tool results that the model can still read": facts_kept(result["facts"]),
        "  of these, in the prompt itself": f"{result['facts']['in_prompt']}",
        f"tokens in the largest prompt, of {window:,}": f"{largest:,}{' ✗' if largest >= window else ''}",
        "tokens that the server evaluates for an answer": f"{result['evaluated'] / len(answered):,.0f}" if answered else "-",
        "median wait for the first word": f"{statistics.median(waits):.1f} s" if waits else "-",
        "rewrites": rewritten(result["rewrites"]),
        "tokens that the client sent": f"{sum(turn['sent'] for turn in turns):,}",
        "tokens that the server took": f"{sum(forwarded(turn) for turn in answered):,}",
        "tokens that it evaluated, briefs included": f"{result['evaluated']:,}",
    }


def facts_kept(facts: dict) -> str:
    return f"{facts['in_prompt'] + facts['recalled']} of {facts['of']}"


def refused(turn: dict) -> int:
    """Size of the prompt in a turn that was not answered: the proxy's word for it, else all that the client sent."""
    return int(turn["headers"].get("prompt-tokens", 0)) or turn["sent"]


def rewritten(done: dict) -> str:
    """How often the conversation was rewritten, and what was done how often: as its page counts it."""
    kinds = [f"{DONE.get(kind, kind)} {number}" for kind, number in done["layers"].items()]
    return f"{done['compactions']} ({', '.join(kinds)})" if done["compactions"] else "none"


def load(path: str):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise Stop(f"{path}: {error}") from error


def save(path: str, value: object) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, function in (("count", count), ("run", run)):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("session")
        command.add_argument("--url", required=True, help="a windowsill that serves a model itself")
        command.add_argument("--requests", "--turns", dest="turns", type=int, help="only the first N")
        command.add_argument("--out", required=True)
        if name == "run":
            command.add_argument("--unmanaged", action="store_true", help="requests go to the model as they are")
            command.add_argument("--counts", required=True)
            command.add_argument("--label", required=True)
            command.add_argument("--max-tokens", type=int, default=24)
    command = commands.add_parser("table")
    command.set_defaults(function=table)
    command.add_argument("results", nargs="+")
    command.add_argument("--window", type=int, required=True)
    args = parser.parse_args()
    try:
        args.function(args)
    except Stop as stop:
        sys.exit(f"\nreplay.py: {stop}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
