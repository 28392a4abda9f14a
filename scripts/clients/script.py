"""What the scripted model says: a fixed run of tool calls for each prompt of the person, then a closing sentence.

It knows nothing but the request before it, as a model does: which prompt it works on is read out of the messages. So a request
that has left the prompt shows as another outcome."""

import json
import os
import re
import threading
from dataclasses import dataclass, field

PROMPT = "Look around in this directory step by step, then say what you saw."
AGAIN = "And now once more, please."
EDIT = "Step %d: please add another small text file."
BRIEF = "[windowsill brief of"
RECALL = "windowsill_recall"

# Tools that run a command, read a file or end the run, by the names that clients give them.
SHELL = ["shell_command", "exec_command", "shell", "local_shell", "bash", "run_shell_command", "execute_command", "terminal",
         "execute", "execute_bash", "run_commands", "run_command", "run_terminal_command", "ipython"]
READ = ["read_file", "read", "view", "cat", "read_text_file", "glob", "ls", "list", "grep"]
FINISH = ["attempt_completion", "finish", "task_complete", "final_answer", "submit_and_exit", "submit"]

MARK = re.compile(r"(Look around in this directory|And now once more|Step \d+: please)")
REMINDER = re.compile(r"(?s)<(system-reminder|environment_context|user_instructions)>.*?</\1>")
SUMMARY = """## Goal
The user wants a look around in this directory, step by step.
## Current state
Several steps were done; notes.txt was read and out files were written.
## Exact next steps
Continue with the next step."""


@dataclass
class Answer:
    """One reply. `calls`: (id, tool, arguments as JSON, namespace or None)."""

    text: str = ""
    calls: list = field(default_factory=list)
    reasoning: str | None = None


def texts(message):
    """The text parts of a message, in any of the dialects."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [p.get("text") or "" for p in parts if isinstance(p, dict) and p.get("type") in ("text", "input_text", "output_text")]


def asked(messages):
    """The prompt that is being worked on: the last of ours that a user message holds outside of a brief and of reminders."""
    last = None
    for message in reversed(messages):
        if not isinstance(message, dict) or message.get("role") != "user":
            continue
        for text in reversed(texts(message)):
            text = REMINDER.sub("", text.split(BRIEF)[0])
            marks = MARK.findall(text)
            if marks:
                return marks[-1]
            last = last or text.strip()[:300] or None
    return last or "?"


def own_kind(body, messages):
    """What a request of windowsill's own is for; None for a client's."""
    if not any(isinstance(m, dict) and (m.get("content") or m.get("type")) for m in messages):
        return "load"
    if body.get("max_tokens") == 1 or (body.get("options") or {}).get("num_predict") == 1:
        return "prefill"
    said = [t for m in messages[-2:] for t in texts(m)]
    return "summary" if any("write a handoff summary" in t for t in said) else None


def tools_of(tools):
    """[(name, schema, namespace)] of a request in any dialect."""
    out = []
    for tool in tools or []:
        if isinstance(tool.get("function"), dict):
            out.append((tool["function"].get("name"), tool["function"].get("parameters") or {}, None))
        elif tool.get("type") == "namespace":
            out += [(name, schema, tool.get("name")) for name, schema, _ in tools_of(tool.get("tools"))]
        elif tool.get("type") == "function" or "input_schema" in tool:
            out.append((tool.get("name"), tool.get("parameters") or tool.get("input_schema") or {}, None))
    return [tool for tool in out if tool[0]]


def pick(tools, names):
    """The first of `tools` that has one of the names, or ends in one."""
    for same in (lambda tool, name: tool.lower() == name, lambda tool, name: tool.lower().endswith(name)):
        for name in names:
            found = next((tool for tool in tools if same(tool[0], name)), None)
            if found:
                return found
    return None


def command(step):
    """A command with a page of output in words; one in the run has eighteen kilobytes of it."""
    if step % 100 == 5:
        return f"echo step {step} > out_{step}.txt; seq {10000 + step} {10500 + step} | sed 's/^/the long list goes on with row /'"
    return [
        f"echo step {step} > out_{step}.txt; ls; seq {1000 + step} {1060 + step} | sed 's/^/a cart goes by with box /'",
        f"seq {step * 7} {step * 7 + 80} | sed 's/^/the value of the row is /'",
        f"wc -c notes.txt; date +%Y > out_{step}.txt; seq {step * 11} {step * 11 + 60} | sed 's/$/ is a number seen on the way/'",
        f"cat notes.txt; echo part {step}",
    ][step % 4]


class Script:
    """The state of one run: how far each prompt has come."""

    def __init__(self, style, workdir, turns, again):
        self.style, self.workdir, self.turns, self.again = style, workdir, turns, again
        self.lock = threading.Lock()
        self.begun, self.recalled = {}, set()

    def answer(self, messages, tools):
        """The next reply to a client's request."""
        key = asked(messages)
        shell, read = pick(tools, SHELL), pick(tools, READ)
        if self.style == "tools" and not (shell or read):
            return Answer(f"Scripted title of {key[:30]}")
        with self.lock:
            first, done = self.begun.setdefault(key, [100 * (len(self.begun) + 1), 0])
            recall = self.recall(key, done, messages, tools)
            if recall:
                return recall
            self.begun[key][1] += 1
        step = first + done
        thought = f"Thinking about step {step} \u2014 keep it short.\n" if step % 3 == 0 else None
        goal = self.turns if first == 100 else self.again
        if self.style != "tools":
            return self.in_text(key, step, done, goal, thought)
        if done >= goal:
            return self.end(key, done, messages, tools, shell)
        turn = [[shell], [read], [shell], [shell, read]][step % 4] if shell and read else [shell or read]
        calls = [self.call(tool, step + i) for i, tool in enumerate(turn)]
        return Answer(["", f"I'll look at step {step} \u2014 caf\u00e9.\n\n"][step % 2], calls, thought)

    def recall(self, key, done, messages, tools):
        """A look at an original, once a prompt, where windowsill offers it."""
        if done < 6 or key in self.recalled or not any(name == RECALL for name, _, _ in tools):
            return None
        self.recalled.add(key)
        ids = re.findall(r"windowsill recall (r[0-9a-f]{6,})", json.dumps(messages))
        return Answer(calls=[(f"call_rec{done:03}", RECALL, json.dumps({"id": ids[0]}), None)]) if ids else None

    def end(self, key, done, messages, tools, shell):
        flat = json.dumps(messages)
        finish = pick(tools, FINISH)
        if "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" in flat and shell:  # mini-swe-agent ends by a command
            arguments = json.dumps({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})
            return Answer("done", [(f"call_fin{done:03}", shell[0], arguments, None)])
        if finish:
            return Answer(calls=[(f"call_fin{done:03}", finish[0], json.dumps(self.fill_all(finish[1], done)), None)])
        return Answer(f"Scripted final answer to {key[:40]} after {done} turns \u2014 done.\n")

    def in_text(self, key, step, done, goal, thought):
        """For clients that read commands and edits out of the text."""
        over = done >= goal
        if self.style == "chat":
            return Answer(f"Scripted answer {step}: " + " ".join(f"word{step * 31 + n}" for n in range(220)) + "\n")
        if self.style == "aider":
            if not key.startswith("Step ") or done >= 1:
                return Answer(f"Scripted answer {step}, no edit needed.\n", reasoning=thought)
            edit = f"I'll add a line.\n\nstep{step}.txt\n```\n<<<<<<< SEARCH\n=======\nline of step {step}\n>>>>>>> REPLACE\n```\n"
            return Answer(edit, reasoning=thought)
        if self.style == "smol":
            if over:
                return Answer("Thought: finished.\n<code>\nfinal_answer('done')\n</code>")
            return Answer(f"Thought: step {step}.\n<code>\nprint('turn {step}', list(range({50 + step})) * 4)\n</code>", reasoning=thought)
        if over:
            return Answer("All done.\n\n```complete\n\n```")  # gptme
        return Answer(f"Step {step}.\n\n```shell\n{command(step)}\n```\n", reasoning=thought)

    def call(self, tool, step):
        name, schema, namespace = tool
        # Unusual spacing on purpose: clients write arguments in their own way.
        arguments = json.dumps(self.fill_all(schema, step), separators=(", ", " : "))
        return (f"call_{sum(map(ord, name)) % 4096:03x}{step:04}", name, arguments, namespace)

    def fill_all(self, schema, step):
        """The smallest arguments that a tool's schema takes."""
        wanted = set(schema.get("required") or []) | {"command", "cmd", "path", "file_path", "filePath"}
        properties = schema.get("properties") or {}
        return {name: self.fill(of, name, step) for name, of in properties.items() if name in wanted}

    def fill(self, schema, name, step):
        kind, low = schema.get("type"), name.lower()
        if isinstance(kind, list):
            kind = next((k for k in kind if k != "null"), "string")
        if "anyOf" in schema and not kind:
            return self.fill(next((s for s in schema["anyOf"] if s.get("type") != "null"), {}), name, step)
        if "enum" in schema:
            return next((v for v in ("view", "read", "LOW", "low") if v in schema["enum"]), schema["enum"][0])
        if kind == "array":
            if low in ("command", "cmd"):
                return ["bash", "-lc", command(step)]
            return [command(step)] if low == "commands" else [self.fill(schema.get("items") or {}, name.rstrip("s"), step)]
        if kind == "object":
            return self.fill_all(schema, step)
        if kind in ("integer", "number"):
            return 1000 if "timeout" in low or "limit" in low else 1
        if kind == "boolean":
            return False
        if low in ("command", "cmd", "commands", "script"):
            return command(step)
        if low in ("workdir", "cwd", "directory", "dir_path", "working_directory"):
            return self.workdir
        if "path" in low or "file" in low or low in ("target", "uri"):
            return os.path.join(self.workdir, "notes.txt")
        if low == "pattern":
            return "*.txt"
        return f"step {step} of the scripted run"
