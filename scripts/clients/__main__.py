#!/usr/bin/env python3
"""Drives real clients through windowsill against a scripted model, and says where they lose something.

Each client is installed from its registry and holds a session of some forty tool steps with a resume: once directly, then at windows of
1.25, 1.6 and 2.5 times what it brings with its first request (4,096 at least). Of every prompt it is asked whether the person's current
request, the newest results and the files that a client sends still stand in it, whether the session ended as it did directly, whether
it was one conversation, and how many requests lost the server's prompt cache to a rewrite.

    python3 scripts/clients [NAME…]      --list names them. The exit code says whether a bar was missed."""

import argparse
import json
import os
import shutil
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import indexed
import install
import judge
import page
import record
import session
from table import CLIENTS

ROOT = Path(__file__).resolve().parents[2]
SHARES = (1.25, 1.6, 2.5)
SMALLEST = 4096  # nobody loads a model with less for this


def main():
    options = arguments()
    if options.list:
        for client in CLIENTS:
            print(f"{client.name:18} {client.title}")
        return 0
    known = {client.name: client for client in CLIENTS}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        sys.exit(f"no such client: {', '.join(unknown)} (--list names them)")
    chosen = [known[name] for name in options.names] or ([] if options.page else list(CLIENTS))
    if options.index:
        chosen = [client for client in chosen if client.calls]
    options.home.mkdir(parents=True, exist_ok=True)
    if options.install:
        for client in chosen:
            install.install(options.home, client)
            say(f"{client.name} {install.place(options.home, client)}")
        return 0
    with ThreadPoolExecutor(options.jobs) as pool:
        missed = sum(pool.map(lambda client: attempt(client, options), chosen))
    if options.page:
        page.write(ROOT / "docs", options.home / "results", CLIENTS)
    return 1 if missed else 0


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/clients", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path(os.environ.get("WINDOWSILL_CACHE", ROOT / ".cache")).absolute()
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug/windowsill"
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the clients' names")
    parser.add_argument("--home", type=lambda path: Path(path).absolute(), default=cache / "clients", help="where clients are installed (%(default)s)")
    parser.add_argument("--windowsill", type=Path, default=built, help="the program (%(default)s)")
    parser.add_argument("--windows", type=lambda text: [int(n) for n in text.split(",")], help="windows instead of the three, by commas")
    parser.add_argument("--jobs", type=int, default=1, help="clients at a time")
    parser.add_argument("--keep", type=Path, help="write the requests of each session into this folder")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="only write excerpts of each client's requests, as tests/data/clients has them")
    parser.add_argument("--index", action="store_true", help="sessions with tools and system text by index at 8,192 and 16,384, of clients that bring much")
    parser.add_argument("--install", action="store_true", help="only install the clients, and print where each is")
    parser.add_argument("--page", action="store_true", help="write the results so far into docs/clients.md and docs/notes/clients.md")
    return parser.parse_args()


def attempt(client, options):
    """Drives one client; whether a bar was missed. One that cannot be installed or started misses it."""
    try:
        return drive(client, options)
    except Exception as error:  # noqa: BLE001: the others go on
        traceback.print_exc()
        say(f"{client.name}: {error}")
        return True


def drive(client, options):
    started = time.time()
    install.install(options.home, client)
    installed = time.time() - started
    work = options.home / "work" / f"{client.name}-{os.getpid()}"
    try:
        return sessions(client, options, work, installed)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def sessions(client, options, work, installed):
    if options.record:
        say(f"{client.name}: {record.record(client, options.home, work, options.record)} requests")
        return False
    if options.index:
        return by_index(client, options, work)
    direct = session.run(client, options.home, work, session.ROOMY)
    first = next((e for e in direct.forwarded if judge.of_session(client, e)), None)
    if options.keep:
        session.keep(direct, options.keep / client.name / "direct")
    if not first:
        raise RuntimeError(f"no requests of a session; exit codes {direct.codes}; the end of its output: {direct.said[-800:]}")
    brings = first["tokens"]
    say(f"{client.name}: installed in {installed:.0f} s, brings {brings}, directly {len(direct.forwarded)} requests in {direct.seconds:.0f} s, "
        f"exit codes {direct.codes}")
    rows = []
    for window in options.windows or windows(brings):
        ran = session.run(client, options.home, work, window, options.windowsill.absolute())
        if options.keep:
            session.keep(ran, options.keep / client.name / str(window))
        row = judge.judge(client, direct, ran, brings)
        rows.append(row)
        say(page.line(row) + f"  {ran.seconds:.0f} s" + (f"\n    {row.note}" if row.note else ""))
    if not options.windows:
        results = options.home / "results"
        results.mkdir(exist_ok=True)
        (results / f"{client.name}.json").write_text(json.dumps([row.plain() for row in rows], indent=1))
    return any(row.misses() for row in rows)


def by_index(client, options, work):
    rows = indexed.sessions(client, options.home, work, options.windowsill.absolute(), options.keep)
    for row in rows:
        say(indexed.line(row))
    results = options.home / "results"
    results.mkdir(exist_ok=True)
    (results / f"{client.name}.index.json").write_text(json.dumps(indexed.plain(rows), indent=1))
    return any(row.misses() for row in rows)


def windows(brings):
    """1.25, 1.6 and 2.5 times what the client brings, in steps of 1,024."""
    least = max(brings, SMALLEST / SHARES[0])
    return [-(-int(least * share) // 1024) * 1024 for share in SHARES]


def say(text):
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
