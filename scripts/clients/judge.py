"""What came of a session: does each prompt hold what it must, and did the client notice anything?"""

import json
import re
from dataclasses import asdict, dataclass

import script
from servers import tokens

REWRITES = 0.25  # most requests that may lose what the server holds in its prompt cache to a rewrite of ours; see `most_rewrites`
RESERVE = 1024  # kept for the reply
# A result may be replaced by a pointer where it is a large part of the window (`evict_over` is a quarter, and estimates err high), or of
# what the client leaves of it: a brief and the call have to stand there, too.
ALONE, OF_ROOM = 0.2, 0.6
POINTER = re.compile(r"windowsill recall r[0-9a-f]{6,}")
CALL_IDS = ("id", "tool_call_id", "tool_use_id", "call_id")
# What clients move from turn to turn though it says nothing else.
INCIDENTAL = ("cache_control", "reasoning", "reasoning_content", "reasoning_details", "thinking", "status", "index", "signature", "name",
              "provider_specific_fields", "annotations", "refusal", "audio", "function_call")


@dataclass
class Row:
    """One line of the table: counts are of the client's requests in the session."""

    client: str
    window: int
    brings: int
    requests: int
    request_lost: int
    results: int
    results_cut: int  # replaced by a pointer, since they alone pass the window
    results_lost: int
    files_sent: int
    files_lost: int
    same: bool
    differs: str
    conversations: int
    rewrites: int
    refused: int
    # Steps of this session that fit above what the client brings.
    steps: float
    note: str = ""
    # How many conversations it is by what the client sends.
    begun: int = 1

    def most_rewrites(self):
        """One in four requests; where the room holds fewer than six steps, one for each step that it holds beside a brief and the
        newest, for no rewrite can make more room than there is."""
        return self.requests * max(REWRITES, 1 / max(1.0, self.steps - 2))

    def misses(self):
        """The bars that were missed, in words."""
        bars = (
            (self.request_lost, f"the current request is missing in {self.request_lost} prompts"),
            (self.results_lost, f"{self.results_lost} newest results are missing"),
            (self.files_lost, f"the files are missing in {self.files_lost} prompts"),
            (not self.same, f"the outcome differs: {self.differs}"),
            (self.requests and self.conversations != self.begun, f"{self.conversations} conversations"),
            (self.rewrites > self.most_rewrites(), f"{self.rewrites} of {self.requests} requests rewritten"),
            (self.refused, f"{self.refused} requests refused"),
            (not self.requests, "no requests"),
        )
        return [words for missed, words in bars if missed]

    def plain(self):
        return asdict(self)


def messages(body):
    said = body.get("messages", body.get("input")) or []
    return [{"role": "user", "content": said}] if isinstance(said, str) else said


def strings(value):
    """All texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)


def mark(client, body):
    """What the person asked last, as far as we know their words."""
    known = script.asked(messages(body))
    return known if known in script_marks(client) else None


def script_marks(client):
    asks = client.asks or (script.PROMPT, script.AGAIN)
    return {script.MARK.search(ask)[0] for ask in asks}


def of_session(client, entry):
    """Whether a request belongs to the session: it works on what the person asked, and is no title, summary or commit message."""
    body = entry.get("body")
    if not isinstance(body, dict) or entry.get("own") or not (body.get("messages") or body.get("input")):
        return False
    if entry.get("path", "").endswith(("/input_tokens", "/count_tokens")):
        return False
    if client.style == "tools" and not script.tools_of(body.get("tools")):
        return False
    if client.style == "aider" and not any("SEARCH/REPLACE" in text for text in strings(messages(body))):
        return False
    return mark(client, body) is not None


def newest_results(body):
    """The texts of the results behind the last words of the assistant."""
    out = []
    for message in reversed(messages(body)):
        kind, role = message.get("type"), message.get("role")
        if role == "assistant" or kind in ("function_call", "reasoning", "custom_tool_call"):
            break
        if kind in ("function_call_output", "custom_tool_call_output"):
            out += strings(message.get("output"))
        elif role == "tool" or role in ("user", "system") and is_observation(message):
            out += strings(message.get("content"))
        elif isinstance(message.get("content"), list):
            blocks = [b for b in message["content"] if isinstance(b, dict) and b.get("type") == "tool_result"]
            out += [text for b in blocks for text in strings(b.get("content")) if text not in ("text", "tool_result")]
    return [text for text in out if len(text) > 20]


def is_observation(message):
    """Whether a message is tool output that the client words as speech (smolagents, gptme), or what stands for it in a prompt."""
    begins = ("Observation:", "Executed code block", "Ran command", "Ran allowlisted", "[preview of ", "[the same output")
    return any(text.startswith(begins) for text in script.texts(message))


def outside_briefs(body):
    return [text.split(script.BRIEF)[0] for text in strings(messages(body))]


def plain(value):
    """A message without what clients move from turn to turn, to see whether the client itself goes on from where it was."""
    if isinstance(value, list):
        parts = [p for p in map(plain, value) if p not in (None, "", [], {})]
        said = all(isinstance(p, dict) and p.get("type") in ("text", "input_text", "output_text") for p in parts)
        return "\n".join(p.get("text", "") for p in parts) if parts and said else parts
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if k not in INCIDENTAL or k == "name" and "role" not in value}
        if kept.get("type") in ("thinking", "reasoning"):
            return None
        return {k: p for k in sorted(kept) if (p := arguments(k, plain(kept[k]))) not in (None, "", [], {})}
    return value.strip() if isinstance(value, str) else value


def arguments(name, value):
    if name != "arguments" or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def goes_on(before, now):
    return len(now) >= len(before) and now[:len(before)] == before


def judge(client, direct, ran, brings):
    """The row of a session at one window."""
    asked = [e for e in ran.asked if of_session(client, e)]
    row = Row(client.name, ran.window, brings, len(asked), 0, 0, 0, 0, 0, 0, True, "", 0, 0, 0, steps_in(client, direct, ran.window, brings),
              begun=client.conversations)
    forwarded = {}
    for entry in ran.forwarded:
        if not entry["own"]:
            forwarded.setdefault(entry["number"], []).append(entry)
    names, before = set(), {}
    for entry in asked:
        if entry["status"] != 200:
            row.refused += 1
            row.note = row.note or f"{entry['status']}: {entry.get('reply', '')[:300]}"
            continue
        sent = [e for e in forwarded.get(entry["number"], ()) if not e.get("refused")]
        if not sent:
            row.refused += 1
            row.note = row.note or "200 without a prompt"
            continue
        name = entry["headers"].get("x-windowsill-conversation")
        names.add(name)
        # Of several, the later ones hold what the model recalled.
        holds(client, entry["body"], sent[0]["body"], ran, row)
        now = (plain(messages(entry["body"])), sent[0]["body"])
        if name in before and lost_prefix(before[name], now, entry["headers"].get("x-windowsill-action")):
            row.rewrites += 1
        before[name] = now
    row.conversations = len(names)
    row.differs = difference(direct, ran)
    row.same = not row.differs
    return row


def steps_in(client, direct, window, brings):
    """How many of the direct session's steps fit in a window above what the client brings."""
    sizes = [e["tokens"] for e in direct.forwarded if of_session(client, e)]
    grown = [after - before for before, after in zip(sizes, sizes[1:]) if after > before]
    step = max(1, sum(grown) / max(1, len(grown)))
    return round(max(0, window - brings - min(RESERVE, window // 4)) / step, 1)


def holds(client, body, sent, ran, row):
    """Counts what of a client's request stands in the prompt."""
    outside = "\n".join(outside_briefs(sent))
    row.request_lost += script.asked(messages(sent)) != mark(client, body)
    results = newest_results(body)
    whole = "\n".join(strings(messages(sent)))
    room = ran.window - row.brings - min(RESERVE, ran.window // 4)
    large = tokens(results) > min(room * OF_ROOM, ran.window * ALONE)
    for text in results:
        row.results += 1
        if text.strip() in whole:
            continue
        pointed = POINTER.search("\n".join(newest_results(sent)))
        row.results_cut += bool(large and pointed)
        row.results_lost += not (large and pointed)
    # The files of the first request, with a brief, as long as they fit.
    if client.sends and room > ran.window // 8:
        last = [line for line in ran.notes.splitlines() if line][-1]
        if last in "\n".join(strings(messages(body))):
            row.files_sent += 1
            row.files_lost += last not in outside


def lost_prefix(before, now, action):
    """Whether a prompt no longer begins with the one before it, though the client only went on, or by a rewrite of ours."""
    (old_client, old), (new_client, new) = before, now
    if goes_on(messages(old), messages(new)):
        return False
    client_went_on = goes_on(old_client, new_client)
    return client_went_on or bool(set((action or "none").split(",")) - {"none", "evict"})


def difference(direct, ran):
    """What is not as in the direct run: exit codes, files, the closing words."""
    if direct.codes != ran.codes:
        return f"exit codes {direct.codes} and {ran.codes}"
    if direct.files != ran.files:
        names = sorted(n for n in direct.files.keys() | ran.files.keys() if direct.files.get(n) != ran.files.get(n))
        return f"files {', '.join(names[:4])}"
    closing = [re.findall(r"Scripted final answer to .* after \d+ turns", said) for said in (direct.said, ran.said)]
    return "" if closing[0] == closing[1] else f"closing words {closing[0][-1:]} and {closing[1][-1:]}"
