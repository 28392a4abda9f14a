#!/usr/bin/env bash
# A real Ollama server for tests: `ollama.sh start --port N --home DIR`, in the foreground until SIGTERM.
#
#   ollama.sh start [--port N] [--home DIR] [--ctx N] [--model NAME] [--no-model] [--binary FILE] [--verbose]
#
# Prints `listening http://127.0.0.1:PORT` once it answers and the model (SmolLM2-135M as `smollm2`, with a chat
# template that knows tools) is there. Port 0 (the default) takes a free one. DIR holds its models and keys.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../lib.sh
source "$here/../lib.sh"

port=0 home="" ctx="" model=smollm2 binary=${WINDOWSILL_OLLAMA:-$(ollama_path)} verbose=""
[ "${1:-}" = start ] || die "usage: ollama.sh start [--port N] [--home DIR] [--ctx N] [--model NAME] [--no-model] [--binary FILE] [--verbose]"
shift
while [ $# -gt 0 ]; do
  case $1 in
    --port) port=${2:?}; shift 2 ;;
    --home) home=${2:?}; shift 2 ;;
    --ctx) ctx=${2:?}; shift 2 ;;
    --model) model=${2:?}; shift 2 ;;
    --no-model) model=""; shift ;;
    --binary) binary=${2:?}; shift 2 ;;
    --verbose) verbose=1; shift ;;
    *) die "ollama.sh: unknown option $1" ;;
  esac
done
[ -x "$binary" ] || die "ollama.sh: no Ollama at $binary; run scripts/servers/install ollama"
home=${home:-$CACHE/ollama-home}
mkdir -p "$home"
home=$(cd "$home" && pwd)
[ "$port" != 0 ] || port=$(free_port)

export HOME=$home OLLAMA_HOST=127.0.0.1:$port OLLAMA_MODELS=$home/models OLLAMA_NOPRUNE=1
[ -z "$ctx" ] || export OLLAMA_CONTEXT_LENGTH=$ctx
log=$home/serve-$port.log

# setsid gives the server and the runners it starts a process group of their own, so that all of them end with us.
setsid "$binary" serve > "$log" 2>&1 &
server=$!
stop() {
  trap - EXIT TERM INT HUP
  kill -TERM -- "-$server" 2> /dev/null || true
  for _ in $(seq 50); do
    kill -0 -- "-$server" 2> /dev/null || break
    sleep 0.1
  done
  kill -KILL -- "-$server" 2> /dev/null || true
  wait "$server" 2> /dev/null || true
}
trap stop EXIT
trap 'stop; exit 0' TERM INT HUP
# Killed outright (SIGKILL, as a test runner's children are) we clean up nothing: a watcher outlives us to do it.
setsid bash -c 'while kill -0 "$1"; do sleep 0.5; done; kill -KILL -- "-$2"' watcher $$ "$server" > /dev/null 2>&1 < /dev/null &

url=http://127.0.0.1:$port
wait_http "$url/api/version" 60 "$server" || { tail -n 20 "$log" >&2; die "ollama.sh: Ollama did not answer on $url"; }
if [ -n "$model" ]; then
  gguf=$(model_path) || die "ollama.sh: the model is not there; run scripts/servers/install llama"
  modelfile="FROM $gguf
TEMPLATE \"\"\"$(cat "$here/smollm2.gotmpl")\"\"\"
PARAMETER stop \"<|im_start|>\"
PARAMETER stop \"<|im_end|>\"
PARAMETER num_thread 1" # two that spin-wait for each other crawl on a busy machine
  if [ "$(cat "$home/$model.Modelfile" 2> /dev/null)" != "$modelfile" ] || ! "$binary" show "$model" > /dev/null 2>&1; then
    printf '%s\n' "$modelfile" > "$home/$model.Modelfile"
    "$binary" create "$model" -f "$home/$model.Modelfile" > "$home/create.log" 2>&1 \
      || { tail -n 20 "$home/create.log" >&2; die "ollama.sh: could not create the model $model"; }
  fi
fi
echo "listening $url"
[ -z "$verbose" ] || tail -n +1 -f --pid="$server" "$log" >&2 &
wait "$server" || die "ollama.sh: Ollama ended by itself; its log is $log"
