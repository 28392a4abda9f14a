#!/usr/bin/env python3
"""Has real clients go on with the conversation of a cloud (`programs/cloud.py`) on a real llama-server: with a picture, a PDF, tools of
MCP servers and what a cloud's own servers did in it. Each does so directly and through windowsill; says how both ended.

    eval "$(scripts/servers/install --env)"; python3 scripts/clients/histories.py [NAME…]     The exit code says whether one ended worse."""

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import install
import session
from servers import MODEL, Tap
from table import CLAUDE, CLIENTS, CODEX, OPENAI, OPENCODE, QWEN

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "programs"))
import cloud  # noqa: E402

WINDOW = 32768
HOME = Path(os.environ.get("WINDOWSILL_CACHE", HERE.parents[1] / ".cache")).absolute() / "clients"
BUILT = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[1] / "target")) / "debug/windowsill"
KNOWN = {client.name: client for client in CLIENTS}
ID, WHEN = "0194f5a0-0000-7000-8000-000000000001", "2026-11-01T00:00:00.000Z"
SERVERS = {name: {"command": sys.executable, "args": [str(HERE / "programs/mcp_server.py"), name]} for name in ("alpha", "beta")}
EVERYTHING, CITED = "picture, PDF, MCP tools, the cloud's own tools", "picture, PDF, MCP tools, citations of a search"


def library(name, kind, packages=()):
    """A session that `programs/with_history.py` holds."""
    client = KNOWN[name]
    command = (("{bin}/python", "{programs}/with_history.py", "{root}", "{proj}"), "")
    return replace(client, env={"KIND": kind}, commands=(command,), packages=client.packages + packages)


def cli(name, *commands, **more):
    return replace(KNOWN[name], commands=tuple((words, "") for words in commands), **more)


def claude_transcript(project):
    head = {"isSidechain": False, "userType": "external", "cwd": project, "sessionId": ID, "version": "2.1.197", "gitBranch": "main", "timestamp": WHEN}
    lines, parent = [], None
    for at, said in enumerate(cloud.anthropic()):
        own = f"0194f5a0-0000-7000-8000-1000000000{at:02}"
        message = said if said["role"] == "user" else {"id": f"msg_{at}", "type": "message", "model": "claude-x", "stop_reason": "end_turn", "stop_sequence": None,
                                                       "usage": {"input_tokens": 1, "output_tokens": 1}, **said}
        lines.append({**head, "type": said["role"], "uuid": own, "parentUuid": parent, "message": message})
        parent = own
    return lines


def codex_transcript(project):
    meta = {"id": ID, "timestamp": WHEN, "cwd": project, "originator": "codex_exec", "cli_version": "0.169.0", "source": "exec", "model_provider": "proxy"}
    items = [("session_meta", meta), *(("response_item", item) for item in cloud.responses())]
    return [{"timestamp": WHEN, "type": kind, "payload": payload} for kind, payload in items]


def pi_transcript(project):
    usage = {"input": 1, "output": 1, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 2, "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0}}
    picture, reply = {"type": "image", "data": cloud.PIXEL, "mimeType": "image/png"}, {"api": "anthropic-messages", "provider": "anthropic", "model": "claude-x", "usage": usage}
    calls = [{"type": "toolCall", "id": f"toolu_{at}", "name": name, "arguments": {"path": "a.txt"}} for at, name in enumerate(cloud.MCP)]
    said = [{"role": "user", "content": [picture, {"type": "text", "text": cloud.ASK}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "I look.", "thinkingSignature": "c2ln"}, {"type": "text", "text": cloud.SAW}], "stopReason": "stop", **reply},
            {"role": "user", "content": "Read both."}, {"role": "assistant", "content": calls, "stopReason": "toolUse", **reply},
            *({"role": "toolResult", "toolCallId": call["id"], "toolName": call["name"], "content": [{"type": "text", "text": "read it"}, picture], "isError": at == 1}
              for at, call in enumerate(calls)),
            {"role": "assistant", "content": [{"type": "text", "text": "One is there."}], "stopReason": "stop", **reply}]
    entries = [{"type": "message", "id": f"{at:08}", "parentId": f"{at - 1:08}" if at else None, "timestamp": WHEN, "message": {"timestamp": 1, **message}}
               for at, message in enumerate(said)]
    return [{"type": "session", "version": 3, "id": ID, "timestamp": WHEN, "cwd": project}, *entries]


def codex_servers():
    return "".join(f'[mcp_servers.{name}]\ncommand = {json.dumps(s["command"])}\nargs = {json.dumps(s["args"])}\n' for name, s in SERVERS.items())


def opencode():
    asked = json.loads(OPENCODE)
    asked["provider"]["proxy"]["models"][MODEL] |= {"attachment": True, "modalities": {"input": ["text", "image", "pdf"], "output": ["text"]}}
    asked["mcp"] = {name: {"type": "local", "command": [s["command"], *s["args"]]} for name, s in SERVERS.items()}
    return json.dumps(asked)


PI = KNOWN["pi"].files["{home}/.pi/agent/models.json"].replace('"input": ["text"]', '"input": ["text", "image"]')
VERCEL = {"commands": ((("node", "{at}/program.mjs", "{root}", "{proj}", "{home}/cloud.json"), ""),), "program": "with_history.mjs", "files": {
    "{home}/cloud.json": json.dumps({name: getattr(cloud, name) for name in ("PIXEL", "PDF", "MCP", "ASK", "SAW", "SCHEMA")})}}
ASK = "Go on, in one word."
# What stands in the history, the client, and the transcript that is laid where it looks for its sessions.
ROWS = {
    "anthropic": (EVERYTHING, library("anthropic", "anthropic"), None),
    "openai": (CITED, library("openai", "openai"), None),
    "openai-responses": (EVERYTHING, replace(library("openai", "responses"), title="openai (Python) 3.52.0, Responses"), None),
    "ollama": ("picture, MCP tools", library("ollama", "ollama"), None),
    "openai-agents": (EVERYTHING + ", a live MCP server", library("openai-agents", "agents"), None),
    "langchain": (CITED, library("langchain", "langchain"), None),
    "pydantic-ai": ("picture, PDF, MCP tools", library("pydantic-ai", "pydantic_ai"), None),
    "vercel": ("picture, PDF, MCP tools", replace(KNOWN["vercel"], **VERCEL), None),
    "claude": (EVERYTHING + ", two live MCP servers", cli(
        "claude", ("{bin}/claude", "-r", ID, "-p", ASK, "--dangerously-skip-permissions", "--mcp-config", "{home}/mcp.json", "--tools", "Bash"),
        ("{bin}/claude", "-c", "-p", ASK, "--dangerously-skip-permissions", "--mcp-config", "{home}/mcp.json", "--tools", "Bash"),
        env=CLAUDE | {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "16"}, files={"{home}/mcp.json": json.dumps({"mcpServers": SERVERS})}),
        ("{home}/.claude/projects/{slug}/" + ID + ".jsonl", claude_transcript)),
    "codex": (EVERYTHING + ", two live MCP servers", cli(
        "codex", ("{bin}/codex", "exec", "--skip-git-repo-check", "resume", ID, ASK), ("{bin}/codex", "exec", "--skip-git-repo-check", "resume", ID, ASK),
        files={"{home}/.codex/config.toml": CODEX + codex_servers()}),
        ("{home}/.codex/sessions/2026/11/01/rollout-2026-11-01T00-00-00-" + ID + ".jsonl", codex_transcript)),
    "pi": ("picture, MCP tools", cli("pi", *[("{bin}/pi", "--provider", "proxy", "--model", MODEL, "--session", "{home}/s.jsonl", "-p", ASK)] * 2,
                                     files={"{home}/.pi/agent/models.json": PI}), ("{home}/s.jsonl", pi_transcript)),
    "opencode": ("picture, PDF, two live MCP servers", cli(
        "opencode", ("{bin}/opencode", "run", "--model", f"proxy/{MODEL}", ASK, "-f", "pixel.png", "-f", "report.pdf"),
        ("{bin}/opencode", "run", "--continue", "--model", f"proxy/{MODEL}", ASK), files={"{proj}/opencode.json": opencode()}), None),
    "qwen": ("a picture and a PDF named with `@`, two live MCP servers", cli(
        "qwen", ("{bin}/qwen", "--yolo", "--auth-type", "openai", "-p", "@pixel.png @report.pdf " + ASK),
        ("{bin}/qwen", "--yolo", "--auth-type", "openai", "--continue", "-p", ASK), env=OPENAI | {"OPENAI_MODEL": MODEL},
        files={"{home}/.qwen/settings.json": json.dumps(json.loads(QWEN) | {"mcpServers": SERVERS})}), None),
}


def main():
    names = sys.argv[1:] or list(ROWS)
    work = HOME / "work" / f"histories-{os.getpid()}"
    work.mkdir(parents=True)
    server, url = llama(work)
    worse = 0
    try:
        print("| client | in the history | directly | through windowsill |\n|---|---|---|---|", flush=True)
        for name in names:
            worse += row(name, work, url)
    finally:
        session.end(server)
        shutil.rmtree(work, ignore_errors=True)
    return 1 if worse else 0


def row(name, work, url):
    """Prints a line of the table; whether the client ended worse."""
    what, client, transcript = ROWS[name]
    install.install(HOME, client)
    direct, through = (attempt(client, transcript, work / f"{name}-{n}", url, n) for n in (False, True))
    print(f"| {client.title} | {what} | {told(direct)} | {told(through)} |", flush=True)
    for code, said in ((direct[0], direct[2]), (through[0], through[2])):
        if any(code) or os.environ.get("SHOW"):
            print(f"    {said[-500:]!r}", file=sys.stderr, flush=True)
    return any(through[0]) and not any(direct[0]) or bad(through) > bad(direct)


def attempt(client, transcript, work, url, through):
    """The exit codes of the client, the statuses of what it asked a model, and what it said."""
    project = work / "project"
    project.mkdir(parents=True)
    (project / "pixel.png").write_bytes(base64.b64decode(cloud.PIXEL))
    (project / "report.pdf").write_bytes(base64.b64decode(cloud.PDF))
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    session.bare(work)
    if transcript:
        slug = "".join(c if c.isalnum() else "-" for c in str(project))
        path = Path(transcript[0].replace("{home}", str(work / "home")).replace("{slug}", slug))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in transcript[1](str(project))))
    proxy, port = session.serve(BUILT, url, work, {}) if through else (None, int(url.rsplit(":", 1)[1]))
    tap = Tap(port)
    try:
        codes = session.commands(client, HOME, work, tap)
    finally:
        tap.stop()
        if proxy:
            session.end(proxy)
    asked = [e["status"] for e in tap.log if e["method"] == "POST" and e["path"].endswith(("/completions", "/messages", "/responses", "/chat"))]
    return codes, asked, (work / "said.txt").read_text(errors="replace") + "".join(e.get("reply") or "" for e in tap.log)


def bad(ran):
    return sum(status != 200 for status in ran[1]) + (not ran[1])


def told(ran):
    codes, asked, _ = ran
    statuses = ", ".join(f"{asked.count(s)} × {s}" for s in dict.fromkeys(asked)) or "nothing asked"
    return f"{statuses}; exit {' '.join(map(str, codes))}"


def llama(work):
    """A real llama-server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # llama-server gives no slot more than the model was trained for, and agents bring more than that.
    key, model = b"llama.context_length" + struct.pack("<I", 4), bytearray(Path(os.environ["WINDOWSILL_MODEL"]).read_bytes())
    at = model.index(key) + len(key)
    model[at:at + 4] = struct.pack("<I", WINDOW)
    (work / "model.gguf").write_bytes(model)
    words = [os.environ["WINDOWSILL_PYTHON"], os.environ["WINDOWSILL_LLAMA_SERVER"], str(work / "model.gguf")]
    words += ["--alias", MODEL, "--with-parent", "--ctx", str(WINDOW), "--predict", "256", "--port", str(port),
              "--chat-template", str(HERE.parents[1] / "demo/chat-template.jinja")]
    with open(work / "llama.log", "w") as log:
        server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    until = time.time() + 120
    while "listening" not in (work / "llama.log").read_text() and time.time() < until and server.poll() is None:
        time.sleep(0.2)
    return server, f"http://127.0.0.1:{port}"


if __name__ == "__main__":
    sys.exit(main())
