"""The clients: what is installed, how each is pointed at a server, and how a session is begun and resumed.

In arguments, variables and files, {root} is the server's address, {base} the same with /v1, {model} the model's name, {home} a home
folder of the run's own, {proj} the project that is worked in, {bin} the folder of the client's programs, {programs} the folder of our
own, {prompt} and {again} what the person asks first and after the resume."""

import json
from dataclasses import dataclass, field

from script import EDIT
from servers import MODEL

TURNS, AGAIN = 40, 5  # tool steps of the first prompt, and after the resume


@dataclass(frozen=True)
class Client:
    name: str
    title: str
    packages: tuple
    # Commands of the session, one after the other: (arguments, standard input).
    commands: tuple
    npm: bool = False
    python: str = "3.11"
    # The folder, where two rows share what is installed.
    installs: str = ""
    npm_flags: tuple = ()
    env: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)
    # A program of ours that is copied to where the client's packages are found.
    program: str = ""
    style: str = "tools"
    turns: int = TURNS
    again: int = AGAIN
    # The project's file that the client sends with each request, if it does.
    sends: str = ""
    # Lines of notes.txt.
    notes: int = 60
    # Conversations that the session is, where the client begins again with an empty history.
    conversations: int = 1
    # What the person asks, in order, where it is not {prompt} and {again}.
    asks: tuple = ()
    # Tools that the model calls in a session with tools by index, one a turn; see indexed.py.
    calls: tuple = ()


def cli(*first, again=(), env=None, **more):
    """A session of one prompt and a resume with another."""
    return {"commands": ((first, ""), *(((*again,), ""),) * bool(again)), "env": env or {}, **more}


def library(program, **more):
    """A session that a program of ours holds with a library."""
    return {"commands": ((("{bin}/python", f"{{programs}}/{program}", "{root}", "{proj}"), ""),), **more}


def script_js(program, *arguments, **more):
    return {"commands": ((("node", "{at}/program.mjs", "{root}", "{proj}", *arguments), ""),), "program": program, "npm": True, **more}


OPENAI = {"OPENAI_BASE_URL": "{base}", "OPENAI_API_BASE": "{base}", "OPENAI_API_KEY": "none"}
CLAUDE = {"ANTHROPIC_BASE_URL": "{root}", "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": MODEL, "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
          "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1"}
CODEX = f"""model = "{MODEL}"
model_provider = "proxy"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.proxy]
name = "proxy"
base_url = "{{base}}"
wire_api = "responses"
env_key = "PROXY_KEY"
request_max_retries = 1
stream_max_retries = 1
"""
QWEN = json.dumps({"security": {"auth": {"selectedType": "openai"}}, "privacy": {"usageStatisticsEnabled": False},
                   "telemetry": {"enabled": False}, "general": {"disableAutoUpdate": True}})
KIMI = f"""default_model = "m"
telemetry = false
[models.m]
provider = "proxy"
model = "{MODEL}"
max_context_size = 131072
[providers.proxy]
type = "openai"
base_url = "{{base}}"
api_key = "none"
"""
OPENCODE = json.dumps({
    "model": f"proxy/{MODEL}", "small_model": f"proxy/{MODEL}", "share": "disabled", "autoupdate": False,
    "permission": {"*": "allow", "bash": "allow", "edit": "allow"},
    "provider": {"proxy": {"npm": "@ai-sdk/openai-compatible", "name": "proxy", "options": {"baseURL": "{base}", "apiKey": "none"},
                           "models": {MODEL: {"name": MODEL, "tool_call": True, "limit": {"context": 131072, "output": 8192}}}}}})
PI = json.dumps({"providers": {"proxy": {"baseUrl": "{base}", "apiKey": "none", "api": "openai-completions", "models": [
    {"id": MODEL, "name": MODEL, "reasoning": False, "input": ["text"], "contextWindow": 131072, "maxTokens": 8192,
     "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}}]}}})
CONTINUE = f"""name: local
version: 1.0.0
schema: v1
models:
  - name: m
    provider: openai
    model: {MODEL}
    apiBase: {{base}}
    apiKey: none
    roles: [chat]
    capabilities: [tool_use]
    defaultCompletionOptions: {{contextLength: 131072, maxTokens: 4096}}
"""
HERMES = f"""model:
  default: {MODEL}
  provider: custom
  base_url: {{base}}
  api_key: none
terminal: {{backend: local, cwd: "{{proj}}"}}
"""
GPTME = f"""[prompt]
[env]
[[providers]]
name = "proxy"
base_url = "{{base}}"
api_key = "none"
default_model = "{MODEL}"
"""
VIBE = f"""active_model = "local"
enable_telemetry = false
enable_update_checks = false
enable_auto_update = false
[[providers]]
name = "proxy"
api_base = "{{base}}"
api_key_env_var = "PROXY_KEY"
api_style = "openai"
backend = "generic"
[[models]]
name = "{MODEL}"
provider = "proxy"
alias = "local"
"""
SGPT = f"""API_BASE_URL={{base}}
OPENAI_API_KEY=none
DEFAULT_MODEL={MODEL}
CACHE_PATH={{home}}/cache
CHAT_CACHE_PATH={{home}}/chat_cache
USE_LITELLM=false
OPENAI_USE_FUNCTIONS=false
"""
LLM_MODEL = f'- {{model_id: local, model_name: {MODEL}, api_base: "{{base}}", api_key_name: none, supports_tools: true}}\n'
LLM_TOOLS = '''import subprocess
def bash(command: str) -> str:
    "Run a shell command"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20).stdout
'''
AIDER = ("{bin}/aider", "--model", f"openai/{MODEL}", "--no-check-update", "--no-show-release-notes", "--no-analytics", "--no-show-model-warnings",
         "--yes-always", "--edit-format", "diff", "--no-pretty", "--no-suggest-shell-commands", "--no-detect-urls",
         "--max-chat-history-tokens", "100000", "notes.txt")
# aider has no resume: `--restore-chat-history` begins with a shortened transcript, another history.
AIDER_STEPS = tuple(EDIT % step for step in range(1, TURNS + AGAIN + 1))


def lines(steps):
    return "".join(step + "\n" for step in steps)


KIMI_RUN = ("{bin}/node", "{at}/node_modules/@moonshot-ai/kimi-code/dist/main.mjs")
LLM = ("{bin}/llm",)

CLIENTS = (
    Client("claude", "Claude Code 2.1.197", ("@anthropic-ai/claude-code@2.1.197",), npm=True, calls=("Bash", "Read", "TaskCreate", "Bash", "TaskList", "Write", "CronList", "Read", "TaskCreate", "Bash"), **cli(
        "{bin}/claude", "-p", "{prompt}", "--dangerously-skip-permissions",
        again=("{bin}/claude", "-c", "-p", "{again}", "--dangerously-skip-permissions"), env=CLAUDE)),
    Client("codex", "Codex CLI 0.169.0", ("@openai/codex@0.169.0",), npm=True, calls=("exec_command", "get_goal", "exec_command", "create_goal", "exec_command", "view_image", "exec_command", "get_goal", "exec_command", "exec_command"), **cli(
        "{bin}/codex", "exec", "--skip-git-repo-check", "{prompt}",
        again=("{bin}/codex", "exec", "--skip-git-repo-check", "resume", "--last", "{again}"),
        env={"PROXY_KEY": "none"}, files={"{home}/.codex/config.toml": CODEX})),
    Client("qwen", "Qwen Code 0.15.10", ("@qwen-code/qwen-code@0.15.10",), npm=True, calls=("run_shell_command", "glob", "read_file", "todo_write", "grep_search", "write_file", "list_directory", "run_shell_command", "glob", "read_file"), **cli(
        "{bin}/qwen", "--yolo", "--auth-type", "openai", "-p", "{prompt}",
        again=("{bin}/qwen", "--yolo", "--auth-type", "openai", "--continue", "-p", "{again}"),
        env=OPENAI | {"OPENAI_MODEL": MODEL}, files={"{home}/.qwen/settings.json": QWEN})),
    Client("kimi", "Kimi Code 2.1.0", ("@moonshot-ai/kimi-code@2.1.0", "node@24"), npm=True, calls=("Bash", "Glob", "Read", "TodoList", "Grep", "Write", "TaskList", "Bash", "Glob", "Read"), **cli(
        *KIMI_RUN, "-p", "{prompt}", again=(*KIMI_RUN, "--continue", "-p", "{again}"),
        env={"KIMI_DISABLE_TELEMETRY": "1", "KIMI_CODE_NO_AUTO_UPDATE": "1"}, files={"{home}/.kimi-code/config.toml": KIMI})),
    Client("opencode", "opencode 1.18.33", ("opencode-ai@1.18.33",), npm=True, **cli(
        "{bin}/opencode", "run", "--model", f"proxy/{MODEL}", "{prompt}",
        again=("{bin}/opencode", "run", "--continue", "--model", f"proxy/{MODEL}", "{again}"),
        env={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"},
        files={"{proj}/opencode.json": OPENCODE})),
    Client("cline", "Cline CLI 3.0.65", ("cline@3.0.65",), npm=True, commands=(
        (("{bin}/cline", "auth", "--provider", "openai-compatible", "--apikey", "none", "--modelid", MODEL, "--baseurl", "{base}"), ""),
        (("{bin}/cline", "--yolo", "{prompt}"), ""))),
    Client("pi", "pi 0.73.1", ("@mariozechner/pi-coding-agent@0.73.1",), npm=True, **cli(
        "{bin}/pi", "--provider", "proxy", "--model", MODEL, "-p", "{prompt}",
        again=("{bin}/pi", "--provider", "proxy", "--model", MODEL, "-c", "-p", "{again}"),
        env={"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"}, files={"{home}/.pi/agent/models.json": PI})),
    Client("continue", "Continue CLI 1.5.47", ("@continuedev/cli@1.5.47",), npm=True, **cli(
        "{bin}/cn", "--config", "{home}/config.yaml", "--auto", "-p", "{prompt}",
        again=("{bin}/cn", "--config", "{home}/config.yaml", "--auto", "--resume", "-p", "{again}"),
        env={"CONTINUE_TELEMETRY_ENABLED": "0", "CONTINUE_CLI_ENABLE_TELEMETRY": "0"}, files={"{home}/config.yaml": CONTINUE})),
    Client("hermes", "hermes-agent 0.19.0", ("hermes-agent==0.19.0",), calls=("terminal", "search_files", "read_file", "todo", "skills_list", "write_file", "process", "terminal", "search_files", "read_file"), **cli(
        "{bin}/hermes", "chat", "-Q", "--yolo", "-q", "{prompt}", again=("{bin}/hermes", "chat", "-Q", "--yolo", "-c", "-q", "{again}"),
        env=OPENAI | {"HERMES_HOME": "{home}/.hermes"}, files={"{home}/.hermes/config.yaml": HERMES})),
    Client("vibe", "Mistral Vibe 3.0.2", ("mistral-vibe==3.0.2",), python="3.12", **cli(
        "{bin}/vibe", "-p", "{prompt}", "--auto-approve", "--trust", again=("{bin}/vibe", "-c", "-p", "{again}", "--auto-approve", "--trust"),
        env={"PROXY_KEY": "none", "VIBE_HOME": "{home}/.vibe"}, files={"{home}/.vibe/config.toml": VIBE})),
    Client("aider", "aider 0.86.2", ("aider-chat==0.86.2",), env=OPENAI | {"AIDER_ANALYTICS": "false"}, style="aider", sends="notes.txt",
           notes=150, asks=AIDER_STEPS, commands=((AIDER, lines(AIDER_STEPS)),)),
    Client("mini", "mini-swe-agent 2.4.6", ("mini-swe-agent==2.4.6", "litellm==1.106.2", "mcp"), **cli(
        "{bin}/mini", "-m", f"openai/{MODEL}", "-y", "--exit-immediately", "-t", "{prompt}", "-o", "{home}/trajectory.json",
        env=OPENAI | {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1"})),
    # litellm brings the vocabulary that gptme would download anew for every message, and wait for.
    Client("gptme", "gptme 0.35.1", ("gptme==0.35.1", "litellm==1.106.2"), style="fenced", conversations=2, **cli(
        "{bin}/gptme", "-n", "-y", "-m", f"proxy/{MODEL}", "--tool-format", "markdown", "--name", "s1", "{prompt}",
        again=("{bin}/gptme", "-n", "-y", "-m", f"proxy/{MODEL}", "--tool-format", "markdown", "--name", "s1", "--resume", "{again}"),
        env=OPENAI | {"TIKTOKEN_CACHE_DIR": "{site}/litellm/litellm_core_utils/tokenizers"},
        files={"{home}/.config/gptme/config.toml": GPTME})),
    Client("llm", "llm 0.36", ("llm==0.36",), **cli(
        *LLM, "-m", "local", "--functions", "{home}/tools.py", "--chain-limit", "60", "{prompt}",
        again=(*LLM, "-c", "--functions", "{home}/tools.py", "--chain-limit", "60", "{again}"),
        env={"LLM_USER_PATH": "{home}/llm"},
        files={"{home}/llm/extra-openai-models.yaml": LLM_MODEL, "{home}/llm/keys.json": '{"none":"none"}', "{home}/tools.py": LLM_TOOLS})),
    Client("openhands", "OpenHands SDK 1.58.0", ("openhands-sdk==1.58.0", "openhands-tools"), python="3.12", **library("with_openhands.py")),
    Client("pydantic-ai", "pydantic-ai 2.68.0", ("pydantic-ai-slim[openai]==2.68.0",), **library("with_pydantic_ai.py")),
    Client("langchain", "LangChain 1.4.7, deepagents 0.7.32",
           ("deepagents==0.7.32", "langchain==1.4.7", "langchain-openai==1.7.3", "langchain-ollama==1.1.0"), **library("with_langchain.py")),
    Client("langchain-ollama", "LangChain by Ollama's API 1.1.0",
           ("deepagents==0.7.32", "langchain==1.4.7", "langchain-openai==1.7.3", "langchain-ollama==1.1.0"), installs="langchain",
           env={"KIND": "ollama"}, **library("with_langchain.py")),
    Client("openai-agents", "OpenAI Agents SDK", ("openai-agents",), **library("with_agents.py")),
    Client("smolagents", "smolagents 1.26.0", ("smolagents[openai,litellm]==1.26.0",), **library("with_smolagents.py")),
    Client("llama-index", "LlamaIndex 0.14.25", ("llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1"), conversations=2,
           **library("with_llama_index.py")),
    Client("openai", "openai (Python) 3.52.0", ("openai==3.52.0", "anthropic==2.11.0", "ollama==0.6.3"), installs="sdks",
           env={"KIND": "openai"}, **library("with_sdks.py")),
    Client("anthropic", "anthropic (Python) 2.11.0", ("openai==3.52.0", "anthropic==2.11.0", "ollama==0.6.3"), installs="sdks",
           env={"KIND": "anthropic"}, **library("with_sdks.py")),
    Client("ollama", "ollama (Python) 0.6.3", ("openai==3.52.0", "anthropic==2.11.0", "ollama==0.6.3"), installs="sdks",
           env={"KIND": "ollama"}, **library("with_sdks.py")),
    Client("vercel", "Vercel AI SDK 7.0.173", ("ai@7.0.173", "@ai-sdk/openai-compatible@2.0.87", "zod"), **script_js("with_vercel.mjs")),
    Client("shell-gpt", "shell-gpt 1.5.1", ("shell-gpt==1.5.1", "click"), style="chat", turns=1, asks=tuple(EDIT % n for n in range(1, 25)),
           commands=tuple((("{bin}/sgpt", "--no-cache", "--chat", "c1", EDIT % n), "") for n in range(1, 25)),
           files={"{home}/.config/shell_gpt/.sgptrc": SGPT}),
)
