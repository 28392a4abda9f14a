#!/usr/bin/env python3
"""The page in a real browser: what a person sees and clicks, in headless Chromium.

    tests/page/browse.py WINDOWSILL [--shots DIR]

Starts a scripted inference server and windowsill in front of it, replays the recorded session of demo/, and drives the page
through ChromeDriver. Needs `chromium` and `chromedriver` in the path, and nothing but Python's own library. Exits with 1 where
something is not as it should be. --shots keeps screenshots, light and dark.
"""

import base64
import contextlib
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
WINDOW = 16384
PATIENCE = 20
KEY = "sesame"
HOSTILE = '<img src=x onerror="window.stung = 1"><script>window.stung = 1</script>'


class Model(http.server.BaseHTTPRequestHandler):
    """Plays llama-server: a window, a reply, and figures that add up."""

    protocol_version = "HTTP/1.1"
    last = 0

    def log_message(self, *_):
        pass

    def answer(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/props":
            self.answer({"default_generation_settings": {"n_ctx": WINDOW}, "total_slots": 1, "model_path": ""})
        elif path == "/v1/models":
            self.answer({"object": "list", "data": [{"id": "demo", "object": "model", "meta": {"n_ctx_train": 40960}}]})
        elif path == "/health":
            self.answer({"status": "ok"})
        else:
            self.answer({"error": {"message": "not here"}}, 404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "chat/completions" not in self.path:
            self.answer({"error": {"message": "not here"}}, 404)
            return
        tokens = len(json.dumps(json.loads(body).get("messages", []))) // 4
        if self.path.endswith("input_tokens"):
            self.answer({"input_tokens": tokens})
            return
        cached = min(Model.last, tokens * 9 // 10)
        Model.last = tokens
        said = "Done: the tuple() call in resolve_lookup_value was found. Next: return the type that came in, and run the tests."
        self.answer({
            "id": "x", "object": "chat.completion", "model": "demo",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": tokens, "completion_tokens": 30, "prompt_tokens_details": {"cached_tokens": cached}},
            "timings": {"cache_n": cached, "prompt_n": tokens - cached, "prompt_ms": (tokens - cached) * 4.7},
        })


def call(method, url, body=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})}, method=method)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.loads(reply.read() or b"null"), reply.headers


class Browser:
    """A session of WebDriver (W3C), as far as it is needed."""

    def __init__(self, port):
        self.base = f"http://127.0.0.1:{port}"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
                     "--disable-background-networking", "--disable-component-update", "--window-size=1440,1200"]
        options = {"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
        made = call("POST", f"{self.base}/session", {"capabilities": {"alwaysMatch": {"browserName": "chrome", **options}}})
        self.base += "/session/" + made[0]["value"]["sessionId"]

    def do(self, method, path, body=None):
        return call(method, self.base + path, body if body is not None or method == "GET" else {})[0]["value"]

    def run(self, script, *arguments):
        return self.do("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, what, script, *arguments):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = self.run(script, *arguments)
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"never came true: {what}\n{self.run('return document.body.innerText')[:2000]}")

    def open(self, url):
        self.do("POST", "/url", {"url": url})

    def click(self, text, tag="button"):
        """Clicks what says `text`, in the dialog where one is open."""
        script = """const within = document.querySelector('dialog[open]') ?? document;
            const all = [...within.querySelectorAll(arguments[1])].filter((e) => e.textContent.trim() === arguments[0] && !e.disabled);
            if (all.length) all[0].click(); return all.length > 0;"""
        self.until(f"a {tag} {text!r} to click", script, text, tag)

    def dark(self, on):
        self.do("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {
            "features": [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]}})

    def wide(self, pixels):
        self.do("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": pixels, "height": 1200, "deviceScaleFactor": 1, "mobile": pixels < 600}})

    def shot(self, folder, name):
        if folder:
            (folder / f"{name}.png").write_bytes(base64.b64decode(self.do("GET", "/screenshot")))

    def shots(self, folder, name):
        for mode in ("light", "dark"):
            self.dark(mode == "dark")
            time.sleep(0.3)
            self.shot(folder, f"{name}-{mode}")
        self.dark(False)


@contextlib.contextmanager
def running(command, ready, **more):
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more)
    try:
        for line in child.stdout:
            if ready in line:
                break
        else:
            raise AssertionError(f"{command[0]} ended at once")
        threading.Thread(target=child.stdout.read, daemon=True).start()
        yield line
    finally:
        child.terminate()
        child.wait()


def replay(url):
    """The recorded session, turn by turn, and a talk of somebody who means harm."""
    session = json.loads((ROOT / "demo/session.json").read_text())
    headers = {"Authorization": f"Bearer {KEY}"}
    id = None
    for at, message in enumerate(session["messages"]):
        if message["role"] == "assistant":
            body = {"model": "demo", "messages": session["messages"][:at]}
            body.update({"tools": session["tools"]} if session.get("tools") else {})
            id = call("POST", f"{url}/v1/chat/completions", body, headers)[1]["x-windowsill-conversation"]
    talk = [{"role": "user", "content": HOSTILE}]
    evil = call("POST", f"{url}/v1/chat/completions", {"model": "demo", "messages": talk}, headers)[1]["x-windowsill-conversation"]
    return id, evil


def long_talk(url, messages):
    talk = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"Message {n}."} for n in range(messages - 1)]
    headers = {"Authorization": f"Bearer {KEY}", "x-windowsill-session": "long"}
    return call("POST", f"{url}/v1/chat/completions", {"model": "demo", "messages": talk}, headers)[1]["x-windowsill-conversation"]


TEXT = "return document.querySelector('main').innerText"


def overview(browser, url, shots):
    browser.open(url)
    browser.until("the form for the key", "return !!document.querySelector('dialog input[name=key]')")
    assert browser.run("return document.querySelectorAll('main table').length") == 0, "nothing is shown without the key"
    browser.run("document.querySelector('dialog input').value = 'wrong'")
    browser.click("Open")
    browser.until("a wrong key is told", "return document.querySelector('dialog')?.innerText.includes('not the right one')")
    browser.run("document.querySelector('dialog input').value = arguments[0]", KEY)
    browser.click("Open")
    browser.until("the conversations", "return document.querySelectorAll('main tbody tr').length >= 2")
    browser.until("the models", "return document.querySelector('main').innerText.includes('Would fit')")
    browser.until("the live trace", "return document.getElementById('status').classList.contains('live')")
    browser.shots(shots, "overview")


def conversation(browser, url, id, shots):
    browser.open(f"{url}/#/c/{id}")
    browser.until("rows", "return document.querySelectorAll('.row .v').length > 5")
    browser.until("the gauge", "return !!document.querySelector('.strip') && !!document.querySelector('svg.chart')")
    text = browser.run(TEXT)
    for part in ("KEPT FOR THE REPLY", "WHAT THE MODEL SEES", "PRESSURE BY TURN", "SPENT", "REWRITES", "fold "):
        assert part.lower() in text.lower(), f"no {part!r} in:\n{text}"
    # By the keyboard alone: the first message, and then one that became something else.
    browser.run("document.querySelector('.list').focus()")
    key = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], bubbles: true, cancelable: true}))"
    browser.run(key, "Home")
    browser.until("the first message", "return document.getElementById('message')?.innerText.toLowerCase().includes('message 0')")
    browser.run("document.querySelector('.list').scrollTop = 1e9")
    browser.until("a rewritten message in sight", "return !!document.querySelector('.row.changed, .row.folded')")
    browser.run("document.querySelector('.row.changed, .row.folded').click()")
    browser.until("its original", "return [...document.querySelectorAll('#message summary')].some((s) => s.textContent.includes('The original'))")
    browser.shots(shots, "conversation")
    for narrow in (360, 800):
        browser.wide(narrow)
        time.sleep(0.2)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), f"it scrolls sideways at {narrow} px"
        browser.shot(shots, f"conversation-{narrow}")
    browser.wide(1440)


def steer(browser, url, id, shots):
    def edits():
        return call("GET", f"{url}/windowsill/conversations/{id}/view", headers={"Authorization": f"Bearer {KEY}"})[0]["edits"]

    before = edits()
    browser.click("Fold now…")
    browser.until("a price", "return document.querySelector('dialog dl.price')?.innerText.includes('evaluated again')")
    browser.shot(shots, "price")
    assert edits() == before, "the price alone changes nothing"
    browser.run("const i = document.querySelector('dialog input'); i.value = 'the failing test'; i.dispatchEvent(new Event('input'))")
    browser.click("Fold")
    browser.until("the dialog is done", "return !document.querySelector('dialog[open]')")
    folded = edits()
    assert folded != before and any(edit["rule"] == "fold" for edit in folded), "it was folded"
    browser.click("Undo last…")
    browser.until("a price", "return document.querySelector('dialog dl.price')")
    browser.click("Undo")
    browser.until("the dialog is done", "return !document.querySelector('dialog[open]')")
    assert edits() == before, "the fold was undone"
    # One result out of the prompt, and back in.
    for action, became in (("Clear", "placeholder"), ("Restore", None)):
        rows = "[...document.querySelectorAll('.row')].filter((r) => r.querySelector('.who')?.textContent === 'result')"
        browser.run("document.querySelector('.list').scrollTop = 1e9")
        if became:
            chosen = browser.until("a whole result", f"const r = {rows}.filter((r) => !r.matches('.changed, .folded')).at(-1); r?.click(); return r?.id")
        browser.click(f"{action}…")
        browser.until("a price", "return document.querySelector('dialog dl.price')")
        browser.click(action)
        browser.until("the dialog is done", "return !document.querySelector('dialog[open]')")
        browser.until(f"{chosen} is {became or 'as it was'}",
                      "return document.getElementById(arguments[0])?.querySelector('.v').textContent.includes(arguments[1])",
                      chosen, became or "as it is")
    browser.click("Build new…")
    browser.until("the turns", "return document.querySelectorAll('dialog .segments tr').length > 3")
    browser.shot(shots, "build")
    browser.run("document.querySelector('dialog input[name=turns]').value = '1-2, 4'")
    browser.click("Download messages.json")
    browser.until("what was built", "return document.getElementById('built')?.textContent.includes('messages')")
    browser.click("Close")


def hostile(browser, url, id):
    browser.open(f"{url}/#/c/{id}")
    browser.until("its row", "return document.querySelector('.row .t')?.textContent.includes('<img')")
    browser.run("document.querySelector('.row').click()")
    browser.until("its text", "return document.getElementById('message')?.innerText.includes('onerror')")
    assert browser.run("return window.stung === undefined && !document.querySelector('main img, main script')"), "text became HTML"


def live(browser, url):
    browser.open(f"{url}/#/")
    browser.until("the overview", "return document.querySelectorAll('main tbody tr').length > 0")
    body = {"model": "demo", "messages": [{"role": "user", "content": "Something new."}]}
    call("POST", f"{url}/v1/chat/completions", body, {"Authorization": f"Bearer {KEY}"})
    browser.until("a new conversation without a reload", "return document.querySelector('main').innerText.includes('Something new.')")


def long(browser, url, id):
    browser.open(f"{url}/#/")
    browser.until("the overview", "return document.querySelectorAll('main tbody tr').length > 0")
    browser.run("""window.rows = null; const begun = performance.now(); location.hash = `#/c/${arguments[0]}`;
        const look = () => document.querySelectorAll('.row .v').length > 5 ? window.rows = performance.now() - begun : requestAnimationFrame(look);
        look();""", id)
    took = browser.until("the rows of a long session", "return window.rows")
    count = browser.run("return document.querySelectorAll('.row').length")
    assert count < 100, f"{count} rows stand in the document"
    print(f"a session of 20,000 messages opened in {took:.0f} ms, {count} rows in the document")
    browser.run("document.querySelector('.list').scrollTop = 0")
    browser.until("the beginning", "return document.querySelector('.row .t')?.innerText === 'Message 0.'")


def main():
    arguments = sys.argv[1:]
    shots = pathlib.Path(arguments[arguments.index("--shots") + 1]) if "--shots" in arguments else None
    program = str(pathlib.Path(arguments[0]).resolve())
    for needed in ("chromium", "chromedriver"):
        if not shutil.which(needed):
            sys.exit(f"{needed} is missing: scripts/servers/install browser installs it")
    if shots:
        shots.mkdir(parents=True, exist_ok=True)
    model = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("WINDOWSILL_")} | {"WINDOWSILL_API_KEY": KEY, "RUST_LOG": "warn"}
        serve = [program, "serve", "--data-dir", f"{folder}/data", "--listen", "127.0.0.1:0", "--upstream", f"http://127.0.0.1:{model.server_port}"]
        with running(serve, "listening on", env=environment, cwd=folder) as line, running(["chromedriver", "--port=0"], "started successfully on port") as started:
            url = line.split()[-1]
            id, evil = replay(url)
            many = long_talk(url, 20_000)
            browser = Browser(int(started.rstrip(".\n").split()[-1]))
            try:
                overview(browser, url, shots)
                conversation(browser, url, id, shots)
                steer(browser, url, id, shots)
                hostile(browser, url, evil)
                live(browser, url)
                long(browser, url, many)
                wrong = [entry["message"] for entry in browser.do("POST", "/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]
                wrong = [message for message in wrong if " 401 " not in message and " 409 " not in message]
                assert not wrong, "\n".join(wrong)
            except BaseException:
                browser.shot(shots or pathlib.Path(tempfile.gettempdir()), "failed")
                raise
            finally:
                browser.do("DELETE", "")
    print("the page is as it should be")


if __name__ == "__main__":
    main()
