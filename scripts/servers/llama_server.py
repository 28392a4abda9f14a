#!/usr/bin/env python3
"""A real llama.cpp HTTP server out of a Python wheel, for tests and the demo.

Needs the package xllamacpp (scripts/servers/install llama puts it into the cache's virtual environment).
Prints one line, `listening http://127.0.0.1:PORT`, once /health answers 200; ends on SIGTERM or SIGINT.
"""

import argparse
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request

READY_SECONDS = 120  # a cold page cache on a slow disk; the 135M model itself loads in under a second


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 (default): any free one")
    parser.add_argument("--ctx", type=int, default=4096, help="window of the whole server in tokens; with --parallel N each slot has an Nth of it")
    parser.add_argument("--parallel", type=int, default=1, help="slots")
    parser.add_argument("--kv-unified", action="store_true", help="slots share one cache, and each reports the whole window")
    parser.add_argument("--threads", type=int, default=1, help="threads that generate (one is fastest for a model this small)")
    parser.add_argument("--threads-batch", type=int, default=min(2, os.cpu_count() or 1), help="threads that read prompts")
    parser.add_argument("--predict", type=int, default=-1, help="tokens a reply has at most, whatever the request asks for (-1: no limit)")
    parser.add_argument("--cache-ram", type=int, default=1024, help="MiB kept for prompts that left their slot (llama.cpp's own default: 8192)")
    parser.add_argument("--chat-template", metavar="FILE", help="Jinja file used in place of the model's own template")
    parser.add_argument("--api-key", action="append", default=[], help="ask clients for this key (may be repeated)")
    parser.add_argument("--slot-save-path", metavar="DIR", help="allow /slots/ID?action=save|restore|erase")
    parser.add_argument("--alias", help="the model's name in replies (default: the file's name)")
    parser.add_argument("--metrics", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--slots", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--props", action=argparse.BooleanOptionalAction, default=True, help="POST /props (GET always works)")
    parser.add_argument("--with-parent", action="store_true", help="end when the process that started this one is gone")
    parser.add_argument("--verbose", action="store_true", help="llama.cpp's own log on stderr")
    return parser.parse_args()


def parameters(xllamacpp, args: argparse.Namespace, port: int):
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.hostnames = [args.host]
    params.port = port
    params.n_ctx = args.ctx
    params.n_parallel = args.parallel
    params.kv_unified = args.kv_unified
    params.n_predict = args.predict
    params.cache_ram_mib = args.cache_ram
    params.cpuparams.n_threads = args.threads
    params.cpuparams_batch.n_threads = args.threads_batch
    params.use_jinja = True
    params.warmup = False
    params.fit_params = False  # the window is what was asked for, never what fits
    params.endpoint_slots = args.slots
    params.endpoint_props = args.props
    params.endpoint_metrics = args.metrics
    params.verbosity = 3 if args.verbose else 1
    if args.chat_template:
        with open(args.chat_template, encoding="utf-8") as file:
            params.chat_template = file.read()
    if args.api_key:
        params.api_keys = args.api_key
    if args.slot_save_path:
        os.makedirs(args.slot_save_path, exist_ok=True)
        params.slot_save_path = os.path.join(args.slot_save_path, "")
    if args.alias:
        params.model_alias = {args.alias}
    return params


def free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def wait_until_healthy(url: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass  # 503 while the model loads
        if time.monotonic() > deadline:
            sys.exit(f"llama_server.py: {url}/health was not 200 within {READY_SECONDS} s")
        time.sleep(0.02)


def main() -> None:
    args = arguments()
    # Read when llama.cpp's library is loaded: waiting threads sleep, else they slow everything on a busy machine by half.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        import xllamacpp
    except ImportError as error:
        sys.exit(f"llama_server.py: {error}; run it with the python that `scripts/servers/install llama` made")
    if not os.path.isfile(args.model):
        sys.exit(f"llama_server.py: no such model file: {args.model}")
    stop, parent = threading.Event(), os.getppid()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    # The wrapper does not say which free port it took before the model is there, so we choose it.
    server = xllamacpp.Server(parameters(xllamacpp, args, args.port or free_port(args.host)))
    wait_until_healthy(server.listening_address)
    print(f"listening {server.listening_address}", flush=True)
    while not stop.wait(1):
        if args.with_parent and os.getppid() != parent:
            break
    os._exit(0)  # nothing to save; llama.cpp's own teardown may wait for running replies


if __name__ == "__main__":
    main()
