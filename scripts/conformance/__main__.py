"""Suites that others wrote, against a server directly and through windowsill: `python3 scripts/conformance [SUITE]…`.

    python3 scripts/conformance                     all of them
    python3 scripts/conformance responses ollama    some
    python3 scripts/conformance --windowsill target/debug/windowsill

responses   what OpenResponses' compliance tests ask, each reply and event held against the specification's types
            (openresponses-types), before llama.cpp's server and before Ollama
ollama      Ollama's own integration tests of its API (the Go module), before Ollama
llama       llama.cpp's own server tests (they come with the source of llama-cpp-python), each server of theirs started with the
            small model; many ask for another model and fail either way
engine      the same tests against windowsill's embedded engine, beside the real server
mcp         the Model Context Protocol's own suite (npm), against windowsill's `/mcp` alone, at both of its newest revisions

What they need is downloaded from package registries into the cache, at the versions below; nothing of theirs is copied here. A
test that passes directly and fails through windowsill is named, and the exit status is 1 then, unless it is listed in KNOWN. Tests that
look for certain words in a small model's reply fail now and then, either way.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path




HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = Path(os.environ.get("WINDOWSILL_CACHE", ROOT / ".cache")) / "conformance"

TYPES = ["openresponses-types==2.4.0", "pydantic==2.14.3", "httpx==0.28.1"]
OLLAMA = "github.com/ollama/ollama@v0.13.5"
LLAMA = "llama-cpp-python==0.3.36"
LLAMA_NEEDS = ["pytest==8.3.5", "pytest-timeout==2.3.1", "requests==2.32.3", "openai==3.52.0", "wget==3.2", "huggingface_hub==0.23.2", "aiohttp==3.9.5", "numpy==1.26.4"]

# Ollama's tests of what this model can do; the others download models.
OLLAMA_TESTS = "TestAPIGenerate|TestAPIChat|TestAPIListModels|TestAPIGenerateLogprobs|TestAPIChatLogprobs|TestBlueSky|TestLongInputContext|TestContextExhaustion|TestGenerateWithHistory|TestChatWithHistory"
# Those of llama.cpp that ask its API for what windowsill answers.
LLAMA_TESTS = ["test_basic.py", "test_chat_completion.py", "test_compat_anthropic.py", "test_compat_oai_responses.py"]
# The embedded engine also answers what passes through to llama-server.
ENGINE_TESTS = [*LLAMA_TESTS, "test_tokenize.py", "test_completion.py"]

MCP = ["@modelcontextprotocol/conformance@0.2.0-alpha.12", "node@22.23.3"]
# Of its scenarios, those that ask for no tools, prompts or resources of the suite's own.
MCP_SCENARIOS = [
    "server-initialize", "ping", "tools-list", "resources-list", "dns-rebinding-protection", "server-stateless", "sep-2164-resource-not-found",
    "caching", "http-header-validation", "server-sse-multiple-streams", "input-required-result-unsupported-methods",
    "input-required-result-ignore-extra-params",
]

# What differs on purpose, with the reason.
KNOWN = {
    "sep-2549-prompts-list-caching-hints": "there are no prompts",
    "sep-2575-server-rejects-undeclared-capability": "asks for a tool of the suite's own",
    "sep-2575-missing-capability-http-400": "asks for a tool of the suite's own",
    "sep-2575-http-server-no-independent-requests-on-stream": "asks for a tool of the suite's own",
    "sep-2575-server-no-log-without-loglevel": "asks for a tool of the suite's own",
    "test_responses_stream_with_llama_telemetry": "a reply that `max_output_tokens` ends is `response.incomplete`, as at OpenAI",
    "test_context_size_exceeded": "a prompt that is too long is made to fit",
    "test_invalid_chat_completion_req[messages7]": "two replies in a row at the end become one",
    "test_anthropic_tool_result_with_image": "a picture for a blind model becomes a line",
    "test_anthropic_vision_format_accepted": "a picture for a blind model becomes a line",
    # These pass in some runs and fail in others, by what the small model says.
    "TestLongInputContext": "of a question that is too long for 128 tokens, the end is sent and marked as cut; the reply is to name a country",
    "test_completion_with_response_format[response_format2": "ten tokens are too few for some spellings of the seven letters",
}


# What the embedded engine does not do, besides.
ENGINE_KNOWN = {
    "test_server_models": "the model is called by its file, and there is no --alias",
    "test_verbose_debug": "the engine tells nothing of how it works in its replies",
    "test_return_progress": "the engine reads a prompt in batches of its own size, and tells nothing of them",
    "test_anthropic_empty_messages": "a request without messages is refused",
    # It passes in some runs and fails in others, by what the small model says.
    "test_completion_unified": "the small model may end its text before it has as many tokens as are asked for",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="responses, ollama, llama, engine, mcp; all without one")
    parser.add_argument("--windowsill", default=str(ROOT / "target/debug/windowsill"), help="the program")
    args = parser.parse_args()
    all_suites = {"responses": run_responses, "ollama": run_ollama, "llama": run_llama, "engine": run_engine, "mcp": run_mcp}
    unknown = set(args.suites) - set(all_suites)
    if unknown:
        parser.error(f"unknown suite {', '.join(sorted(unknown))}; there are {', '.join(all_suites)}")
    env = servers_env()
    worse = []
    for name in args.suites or all_suites:
        for title, direct, through in all_suites[name](env, args.windowsill):
            # A server need not speak OpenResponses or MCP; windowsill does.
            due = direct if name not in ("responses", "mcp") else dict.fromkeys(through, True)
            if not any(due.values()):
                raise SystemExit(f"{title}: not one of {len(due)} tests passes directly: is what scripts/servers/install says there?")
            lost = sorted(test for test, passed in due.items() if passed and not through.get(test))
            print(f"{title}: {sum(direct.values())} of {len(direct)} directly, {sum(through.values())} of {len(through)} through", flush=True)
            for test in lost:
                known = {**KNOWN, **(ENGINE_KNOWN if name == "engine" else {})}
                why = next((why for start, why in known.items() if start in test), None)
                print(f"  fails through windowsill: {test}" + (f" ({why})" if why else ""), flush=True)
                worse += [test] if why is None else []
    return 1 if worse else 0


def run_mcp(env, program):
    home = CACHE / "mcp"
    if not (home / "node_modules/node/bin/node").exists():
        home.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "install", "--silent", "--prefix", home, *MCP], check=True)
    command = [home / "node_modules/node/bin/node", home / "node_modules/@modelcontextprotocol/conformance/dist/index.js", "server"]
    with windowsill(program, "http://127.0.0.1:1") as own:
        for version in ("2025-11-25", "2026-07-28"):
            through = {}
            for scenario in MCP_SCENARIOS:
                asked = [*command, "--url", f"{own}/mcp", "--scenario", scenario, "--spec-version", version]
                said = subprocess.run(asked, capture_output=True, text=True, timeout=120).stdout
                plain = re.sub(r"\x1b\[\d*m", "", said)
                found = re.findall(r"\[([\w-]+) *\] (SUCCESS|FAILURE)", plain)
                if not found and "SKIPPED" not in plain and "Checks:" not in plain:
                    raise SystemExit(f"{scenario}: the suite says nothing of it:\n{plain[-800:]}")
                for check, outcome in found:
                    through[check] = through.get(check, True) and outcome == "SUCCESS"
            yield f"mcp {version}", {}, through


def servers_env():
    said = subprocess.run([ROOT / "scripts/servers/install", "--env"], check=True, capture_output=True, text=True).stdout
    return dict(re.findall(r"export (\w+)='?([^'\n]*)'?", said))


@contextmanager
def listening(command, **more):
    """Runs a server until the end, and gives the address that it prints."""
    child = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **more)
    try:
        for line in child.stdout:
            if "listening" in line:
                yield line.split()[-1]
                return
        raise SystemExit(f"{command[0]} ended before it listened")
    finally:
        child.terminate()
        child.wait()


@contextmanager
def llama_server(env):
    with listening([env["WINDOWSILL_PYTHON"], env["WINDOWSILL_LLAMA_SERVER"], env["WINDOWSILL_MODEL"]]) as url:
        yield url


@contextmanager
def ollama(env):
    home = CACHE / "ollama-home"
    home.mkdir(parents=True, exist_ok=True)
    with listening([env["WINDOWSILL_OLLAMA_SERVER"], "start", "--home", home], env={**os.environ, **env}) as url:
        yield url


@contextmanager
def windowsill(program, url):
    with tempfile.TemporaryDirectory() as data:
        with listening([program, "serve", "--listen", "127.0.0.1:0", "--upstream", url, "--data-dir", data]) as own:
            yield own


def venv(name, packages):
    """A virtual environment with these packages, made once."""
    place = CACHE / name
    wanted = "\n".join(packages)
    if not (place / "has").exists() or (place / "has").read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        subprocess.run([place / "bin/pip", "install", "--quiet", *packages], check=True)
        (place / "has").write_text(wanted)
    return place / "bin/python"


def run_responses(env, program):
    python = venv("responses", TYPES)

    def asked(url, model):
        done = subprocess.run([python, HERE / "responses.py", url, model], check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    for title, server, model in [("OpenResponses, llama.cpp", llama_server, "smollm2"), ("OpenResponses, Ollama", ollama, "smollm2")]:
        with server(env) as url, windowsill(program, url) as own:
            yield title, asked(url, model), asked(own, model)


def run_ollama(env, program):
    CACHE.mkdir(parents=True, exist_ok=True)
    tests = CACHE / "ollama-integration"
    said = subprocess.run(["go", "mod", "download", "-json", OLLAMA], check=True, capture_output=True, text=True, cwd=CACHE)
    source = Path(json.loads(said.stdout)["Dir"])
    if not tests.exists():
        build = ["go", "test", "-c", "-tags=integration", "-o", str(tests), "./integration"]
        subprocess.run(build, check=True, cwd=source, env={**os.environ, "CGO_ENABLED": "0"})

    def asked(url):
        more = {"OLLAMA_HOST": url, "OLLAMA_TEST_EXISTING": "1", "OLLAMA_TEST_DEFAULT_MODEL": "smollm2"}
        command = [str(tests), "-test.v", "-test.run", OLLAMA_TESTS, "-test.timeout", "300s"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=source / "integration", env={**os.environ, **more})
        found = re.findall(r"^\s*--- (PASS|FAIL): (\S+)", done.stdout, re.M)
        return {test: how == "PASS" for how, test in found}

    with ollama(env) as url, windowsill(program, url) as own:
        yield "Ollama's integration tests", asked(url), asked(own)


def run_llama(env, program):
    tests, python, there = llama_tests(LLAMA_TESTS)
    asked = lambda **more: llama_asked(env, tests, python, there, more)
    yield "llama.cpp's server tests", asked(), asked(CONFORMANCE_THROUGH=program)


def run_engine(env, program):
    tests, python, there = llama_tests(ENGINE_TESTS)
    asked = lambda **more: llama_asked(env, tests, python, there, more)
    yield "llama.cpp's server tests, embedded engine", asked(), asked(CONFORMANCE_ENGINE=program)


def llama_tests(names):
    """llama.cpp's tests, what runs them, and those of these names."""
    tests = CACHE / LLAMA.replace("==", "-")
    if not tests.exists():
        with tempfile.TemporaryDirectory() as place:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", place, LLAMA]
            subprocess.run(pip, check=True)
            with tarfile.open(next(Path(place).glob("*.tar.gz"))) as archive:
                for member in archive.getmembers():
                    _, found, rest = member.name.partition("/tools/server/tests/")
                    if found and member.isfile():
                        member.name = rest
                        archive.extract(member, tests, filter="data")
    python = venv("llama", LLAMA_NEEDS)
    there = [f"unit/{name}" for name in names if (tests / "unit" / name).exists()]
    return tests, python, there


def llama_asked(env, tests, python, there, more):
    more = {**env, "LLAMA_SERVER_BIN_PATH": str(HERE / "llama_server"), **more}
    report = CACHE / "llama.xml"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "--timeout=60", *there]
    subprocess.run(command, cwd=tests, env={**os.environ, **more}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    cases = re.findall(r'<testcase classname="([^"]*)" name="([^"]*)"[^>]*?(?:/>|>(.*?)</testcase>)', report.read_text(), re.S)
    return {f"{of}::{name}": not re.search(r"<(failure|error|skipped)", inner or "") for of, name, inner in cases}


if __name__ == "__main__":
    sys.exit(main())
