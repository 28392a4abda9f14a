"""Runs commands, a JSON list of them on standard input, by the memory tool that Anthropic's SDK brings for files. Prints what it
answers to each, and `Error: …` where it raises."""

import json
import sys
import tempfile

from anthropic.lib.tools import ToolError
from anthropic.tools.memory import BetaLocalFilesystemMemoryTool

with tempfile.TemporaryDirectory() as folder:
    tool = BetaLocalFilesystemMemoryTool(folder)
    said = []
    for command in json.load(sys.stdin):
        try:
            said.append(tool.call(command))
        except ToolError as error:
            said.append(f"Error: {error}")
print(json.dumps(said))
