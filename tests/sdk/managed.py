"""Has windowsill manage a history, with the helpers of Anthropic's SDK that ask for it: `managed.py URL HOW MODEL STEPS LINES`, HOW one of
editing (context editing in the tool runner), compaction (at a line), pause (the same, with a pause), on-demand (the runner's
`compact_before_next_turn`) and memory (the SDK's own memory tool, in a folder), or with `-stream` behind it.

Prints what the client saw as one JSON object: a row for each of at most STEPS replies, and the last count. A page has LINES lines.
"""

import json
import sys
import tempfile

from anthropic import Anthropic, beta_tool
from anthropic.tools.memory import BetaLocalFilesystemMemoryTool

url, how, model, steps, lines = sys.argv[1:]
streamed = how.endswith("-stream")
how = how.removesuffix("-stream")
client = Anthropic(base_url=url, api_key="mine", max_retries=0, timeout=600)
pages = 0


@beta_tool
def read_page() -> str:
    """Reads the next page of the book."""
    global pages
    pages += 1
    page = (f"Page {pages}, line {n}: shelf {n * 7 % 17} holds {n * pages % 101} boxes." for n in range(int(lines)))
    return "\n".join(page)


EDITS = {
    "editing": [
        {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}},
        {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 5}, "keep": {"type": "tool_uses", "value": 2}},
    ],
    "compaction": [{"type": "compact_20260112"}],
    "pause": [{"type": "compact_20260112", "pause_after_compaction": True}],
}

folder = tempfile.mkdtemp()
tools = [BetaLocalFilesystemMemoryTool(folder)] if how == "memory" else [read_page]
asked = [{"role": "user", "content": "Read all pages of the book, and count the boxes on shelf 3."}]
wanted = {"model": model, "max_tokens": 48, "system": "You read books.", "tools": tools, "messages": asked}
if how in EDITS:
    wanted["context_management"] = {"edits": EDITS[how]}
runner = client.beta.messages.tool_runner(stream=streamed, max_iterations=int(steps), **wanted)
rows = []
for step in runner:
    message = step.get_final_message() if streamed else step
    usage, managed = message.usage, message.context_management
    rows.append({
        "stop": message.stop_reason,
        "content": [block.type for block in message.content],
        "read": usage.input_tokens,
        "cached": usage.cache_read_input_tokens,
        "applied": [edit.to_dict() for edit in managed.applied_edits] if managed else None,
        "iterations": [round.type for round in usage.iterations or []],
    })
    if how == "on-demand" and len(rows) % 6 == 5:
        runner.compact_before_next_turn({"type": "summarize", "instructions": "Keep the numbers of boxes."})
counted = None
if how in EDITS:
    history = [*asked, {"role": "assistant", "content": "Read."}, {"role": "user", "content": read_page.call({}) * 28}]
    more = {"context_management": {"edits": EDITS[how]}}
    count = client.beta.messages.count_tokens(model=model, messages=history, **more)
    counted = [count.input_tokens, count.context_management.original_input_tokens]
shown = client.beta.models.retrieve(model)
print(json.dumps({
    "rows": rows,
    "pages": pages,
    "counted": counted,
    "window": shown.max_input_tokens,
    "compacts": shown.capabilities.compaction.summarize.supported,
}))
