"""Makes test data of a client's requests: short excerpts of a short session, without paths of this machine.

One line a request: the API's path, what must stand in its prompt, how many messages it begins with that the request before began with,
the rest of its messages, and the other fields where they changed."""

import dataclasses
import json
import re

import judge
import script
import session

TURNS, AGAIN = 14, 3
LONGEST = 700  # characters of a text that are kept
# What our own script says, prints or writes; of a client's own words only the beginning and the end are kept.
OURS = re.compile(r"a cart goes by|value of the row|quick brown fox|number seen on the way|long list goes on|Scripted|look at step|line of step")
QUOTED = 60
LEFT_OUT = ("metadata", "client_metadata", "prompt_cache_key", "user", "tools", "output_config", "context_management", "include")


def record(client, home, work, folder):
    """Drives the client through a short session and writes its requests to `folder`."""
    short = dataclasses.replace(client, turns=TURNS, again=AGAIN, asks=client.asks[:TURNS])
    if client.style == "aider":
        (words, typed), = client.commands
        short = dataclasses.replace(short, commands=((words, "".join(typed.splitlines(keepends=True)[:TURNS])),))
    ran = session.run(short, home, work, session.ROOMY)
    places = ((work / "project", "/work"), (work / "home", "/home/me"), (home, "/opt"))
    paths = [(str(path), other) for place, other in places for path in (place.resolve(), place)]
    lines, before, fields = [], [], None
    for entry in ran.asked:
        if not judge.of_session(short, entry):
            continue
        body = excerpt(entry["body"], paths)
        key = "messages" if "messages" in body else "input"
        said = body.pop(key)
        same = next((at for at, (a, b) in enumerate(zip(before, said)) if a != b), min(len(before), len(said)))
        line = {"path": entry["path"], "asked": judge.mark(short, entry["body"]), "results": needles(key, said), "same": same, key: said[same:]}
        if client.sends:
            line["files"] = excerpt(ran.notes, paths).strip().splitlines()[-1]
        if body != fields:
            line["fields"] = body
        lines.append(json.dumps(line, ensure_ascii=False))
        before, fields = said, body
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{client.name}.jsonl").write_text("\n".join(lines) + "\n")
    return len(lines)


def needles(key, said):
    """The ends of the newest results."""
    return [text.strip()[-60:] for text in judge.newest_results({key: said})]


def excerpt(value, paths, name=""):
    """A value with shorter texts, fewer tools and other paths; the same text always gives the same excerpt."""
    if isinstance(value, str):
        for path, other in paths:
            value = value.replace(path, other)
        # What differs from run to run, or could be taken for a secret.
        value = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "00000000-0000-4000-8000-000000000000", value)
        value = re.sub(r"\d{8}_\d{6}_[0-9a-f]+", "20260101_000000_000000", value)
        if len(value) > 3 * QUOTED and name != "arguments" and not OURS.search(value):
            marks = script.MARK.findall(value)
            asked = next((ask for ask in (script.PROMPT, script.AGAIN) if ask in value), marks[-1] if marks else "")
            filler = "words of the client " * (min(len(value), LONGEST) // 20)
            return f"{value[:QUOTED]} [\u2026] {filler}{asked} {value[-QUOTED:]}"
        if len(value) > LONGEST and name != "arguments":
            marks = script.MARK.findall(value)
            middle = f" {marks[-1]} " if marks and not script.MARK.search(value[:LONGEST // 2] + value[-LONGEST // 2:]) else " "
            value = value[:LONGEST // 2] + "\n[\u2026]" + middle + value[-LONGEST // 2:]
        return value
    if isinstance(value, list):
        return [excerpt(part, paths) for part in value]
    if isinstance(value, dict):
        kept = {k: excerpt(v, paths, k) for k, v in value.items() if k not in LEFT_OUT}
        if "tools" in value and isinstance(value["tools"], list):
            kept["tools"] = tools(value["tools"], paths)
        return kept
    return value


def tools(all_, paths):
    """The tools that the session uses, with the beginning of what is said of them."""
    chosen = [script.pick(script.tools_of(all_), names) for names in (script.SHELL, script.READ)]
    names = {tool[0] for tool in chosen if tool}
    out = []
    for tool in all_:
        function = tool.get("function") if isinstance(tool.get("function"), dict) else tool
        if function.get("name") in names:
            function = {k: bare(v) for k, v in function.items() if k in ("name", "type", "parameters", "input_schema")} | {
                "description": "A tool of the client."}
            out.append({"type": "function", "function": function} if "function" in tool else function)
    return out


def bare(schema):
    """A tool's schema without its descriptions."""
    if isinstance(schema, list):
        return [bare(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {k: bare(v) for k, v in schema.items() if not (k == "description" and isinstance(v, str))}
