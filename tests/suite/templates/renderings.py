#!/usr/bin/env python3
"""Renders the templates of renderings.json and continued.json with a real llama.cpp server, and writes down what comes out.

    eval "$(scripts/servers/install --env)" && "$WINDOWSILL_PYTHON" tests/suite/templates/renderings.py

Each template is given to a server of its own, each conversation to its /apply-template. What the server refuses has no
rendering. Only for when templates or conversations are added, or llama.cpp is a newer one: the tests read the file alone.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

FILES = [pathlib.Path(__file__).with_name(name) for name in ("renderings.json", "continued.json")]


def rendered(template: str, conversations: dict) -> dict:
    """The prompts of the conversations that the server does not refuse."""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja", encoding="utf-8") as file:
        file.write(template)
        file.flush()
        command = [sys.executable, os.environ["WINDOWSILL_LLAMA_SERVER"], os.environ["WINDOWSILL_MODEL"]]
        command += ["--ctx", "512", "--with-parent", "--chat-template", file.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            line = server.stdout.readline().split()
            if not line:  # it cannot read the template
                return {}
            try:
                url = line[-1]
                return {name: prompt for name, body in conversations.items() if (prompt := asked(url, body)) is not None}
            finally:
                server.kill()


def asked(url: str, body: dict) -> str | None:
    request = urllib.request.Request(
        f"{url}/apply-template", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)["prompt"]
    except urllib.error.HTTPError:
        return None


def main() -> None:
    for file in FILES:
        data = json.loads(file.read_text(encoding="utf-8"))
        for template in data["templates"]:
            template["renderings"] = rendered(template["source"], data["conversations"])
            print(f"{template['name']}: {len(template['renderings'])}", file=sys.stderr)
        file.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
