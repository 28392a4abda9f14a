"""One session of one client: through windowsill or directly, in a project and a home of its own."""

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import install
import script
from servers import Model, Tap

HERE = Path(__file__).resolve().parent
LIMIT = 400  # seconds for one command of a client
ROOMY = 1 << 20  # the window of a direct run


@dataclass
class Ran:
    """What a session left behind."""

    window: int
    asked: list  # by the client, as the tap saw it
    forwarded: list  # to the model
    codes: list  # of the client's commands
    files: dict  # in the project
    said: str  # by the client
    conversations: str = ""  # `windowsill context`
    log: str = ""  # windowsill's
    seconds: float = 0.0
    notes: str = field(default="", repr=False)


def run(client, home, work, window, windowsill=None, said=None, settings=None):
    """Runs a session at `window`; directly where there is no `windowsill`. `said` makes another script than the usual one for the
    project's folder, `settings` are variables for windowsill."""
    shutil.rmtree(work, ignore_errors=True)
    project = work / "project"
    project.mkdir(parents=True)
    notes = "".join(f"note {n}: the quick brown fox counts to {n * n}\n" for n in range(1, client.notes + 1))
    (project / "notes.txt").write_text(notes)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "init.defaultBranch=main", "-C", str(project)]
    for step in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "init"]):
        subprocess.run([*git, *step], check=True)
    said = said or (lambda folder: script.Script(client.style, folder, client.turns, client.again))
    model = Model(said(str(project)), window)
    proxy, port = None, model.port
    if windowsill:
        proxy, port = serve(windowsill, model.url, work, settings or {})
    tap = Tap(port)
    started = time.time()
    try:
        codes = commands(client, home, work, tap)
        conversations = context(windowsill, work) if windowsill else ""
    finally:
        for server in (tap, model):
            server.stop()
        if proxy:
            end(proxy)
    said = (work / "said.txt").read_text(errors="replace")
    log = (work / "windowsill.log").read_text(errors="replace") if windowsill else ""
    return Ran(window, tap.log, model.log, codes, left_in(project), said, conversations, log, time.time() - started, notes)


def serve(windowsill, upstream, work, settings):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [windowsill, "serve", "--upstream", upstream, "--data-dir", work / "record", "--listen", f"127.0.0.1:{port}"]
    with open(work / "windowsill.log", "w") as log:
        proxy = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=work, start_new_session=True,
                                 env=bare(work) | {"RUST_LOG": "windowsill=info"} | settings)
    until = time.time() + 30
    while time.time() < until and proxy.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return proxy, port
        except OSError:
            time.sleep(0.05)
    end(proxy)
    raise RuntimeError("windowsill does not start: " + (work / "windowsill.log").read_text()[-400:])


def bare(work):
    """An environment with a home of the run's own, so that no settings of yours are read or changed."""
    home = work / "home"
    folders = {"XDG_CONFIG_HOME": ".config", "XDG_DATA_HOME": ".local/share", "XDG_CACHE_HOME": ".cache", "XDG_STATE_HOME": ".local/state"}
    for folder in folders.values():
        (home / folder).mkdir(parents=True, exist_ok=True)
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE") if name in os.environ}
    return kept | {name: str(home / folder) for name, folder in folders.items()} | {
        "HOME": str(home), "NO_PROXY": "127.0.0.1,localhost", "DO_NOT_TRACK": "1", "CI": "1", "TERM": "dumb",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def commands(client, home, work, tap):
    """Runs the client's commands; their exit codes. The client's output goes to said.txt."""
    at = install.place(home, client)
    folder = at / ("node_modules/.bin" if client.npm else "bin")
    site = next(at.glob("lib/python3*/site-packages"), at)
    places = {"site": site, "root": tap.url, "base": tap.url + "/v1", "home": work / "home", "proj": work / "project", "at": at, "bin": folder,
              "programs": HERE / "programs", "prompt": script.PROMPT, "again": script.AGAIN}

    def fill(text):
        for name, value in places.items():
            text = text.replace("{" + name + "}", str(value))
        return text
    environment = bare(work) | {"PROMPT": script.PROMPT, "AGAIN": script.AGAIN} | {name: fill(text) for name, text in client.env.items()}
    for name, text in client.files.items():
        path = Path(fill(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill(text).replace("{{", "{").replace("}}", "}") if path.suffix in (".yaml", ".toml") else fill(text))
    if client.program:
        shutil.copy(HERE / "programs" / client.program, at / "program.mjs")
    codes = []
    with open(work / "said.txt", "w") as said:
        for arguments, typed in client.commands:
            words = [fill(word) for word in arguments]
            started = subprocess.Popen(words, cwd=work / "project", env=environment, text=True, stdin=subprocess.PIPE,
                                       stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                started.communicate(typed, timeout=LIMIT)
                codes.append(started.returncode)
            except subprocess.TimeoutExpired:
                codes.append("timeout")
            end(started)
    return codes


def end(process):
    """Ends a process with all that it started."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def context(windowsill, work):
    asked = [windowsill, "context", "--data-dir", work / "record"]
    return subprocess.run(asked, capture_output=True, text=True, timeout=60, env=bare(work)).stdout


def left_in(project):
    """The files of the project that are not the client's own, by digest."""
    files = [f for f in sorted(project.rglob("*")) if f.is_file()]
    names = {str(f.relative_to(project)): f for f in files}
    own = (".git/", ".aider", ".continue", ".gitignore", "opencode.json", "program.mjs")
    return {name: hashlib.sha256(f.read_bytes()).hexdigest()[:12] for name, f in names.items() if not name.startswith(own)}


def keep(ran, folder):
    """Writes a session's requests down, for a look at them and to make test data from."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, entries in (("asked", ran.asked), ("forwarded", ran.forwarded)):
        with open(folder / f"{name}.jsonl", "w") as out:
            out.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    (folder / "said.txt").write_text(ran.said)
    (folder / "windowsill.log").write_text(ran.log)
    (folder / "context.txt").write_text(ran.conversations)
