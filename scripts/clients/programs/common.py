"""What the programs here share: where to send requests, two tools, and what the person asks."""

import os
import subprocess
import sys

ROOT = sys.argv[1]
BASE = ROOT + "/v1"
PROJECT = sys.argv[2]
MODEL = "scripted"
PROMPTS = (os.environ["PROMPT"], os.environ["AGAIN"])
MOST = 60  # model calls a prompt
os.chdir(PROJECT)


def bash(command: str) -> str:
    """Run a shell command and return what it prints.

    Args:
        command: the command to run
    """
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20).stdout


def read_file(path: str) -> str:
    """Read a text file.

    Args:
        path: the path of the file
    """
    with open(path) as file:
        return file.read()


TOOLS = {"bash": (bash, "command"), "read_file": (read_file, "path")}


def schema(name):
    parameter = TOOLS[name][1]
    return {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
