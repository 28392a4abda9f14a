"""Installs clients from the package registries, each into a folder of its own."""

import importlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

ONE_AT_A_TIME = threading.RLock()
"""Sessions run side by side and share uv and some folders. Two installations into one folder would undo each other."""


def place(home, client):
    """Where a client is, installed or not."""
    return home / ("npm" if client.npm else "py") / (client.installs or client.name)


def install(home, client):
    """Installs what the client needs, unless the same packages are there already."""
    with ONE_AT_A_TIME:
        _install(home, client)


def _install(home, client):
    where = place(home, client)
    wanted = "\n".join(client.packages)
    note = where / ".installed"
    if note.exists() and note.read_text() == wanted:
        return
    where.mkdir(parents=True, exist_ok=True)
    if client.npm:
        (where / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
        run("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", where, *client.npm_flags, *client.packages)
    else:
        shutil.rmtree(where)
        run(uv(home), "venv", "-q", "--python", python(client.python), where)
        run(uv(home), "pip", "install", "-q", "--python", where / "bin/python", *client.packages)
    note.write_text(wanted)


def library(home, name):
    """A Python package that our own scripts use, as a module."""
    where = home / "tools/lib"
    with ONE_AT_A_TIME:
        if not (where / name).exists():
            run(uv(home), "pip", "install", "-q", "--python", sys.executable, "--target", where, name)
    if str(where) not in sys.path:
        sys.path.append(str(where))
    return importlib.import_module(name)


def uv(home):
    """uv, which installs in seconds what pip takes minutes for."""
    tools = home / "tools"
    if not (tools / "bin/uv").exists():
        run(sys.executable, "-m", "venv", tools)
        run(tools / "bin/pip", "install", "-q", "uv")
    return tools / "bin/uv"


def python(version):
    """The newest Python of a version, pyenv's too, which are not on the PATH."""
    kept = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    return kept[-1] if kept else version


def run(*command):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-600:]}")
