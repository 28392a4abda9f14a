#!/usr/bin/env python3
"""The page in a real browser: what a person sees and clicks, in headless Chromium, before a real llama.cpp server.

    tests/page/browse.py WINDOWSILL [--shots DIR] [--docs]

Starts llama.cpp's server with a small model, and windowsill in front of it; replays the recorded session of demo/, and drives the
page through ChromeDriver: every action once, with what its price said against what the server then evaluated. Needs what
`scripts/servers/install llama browser` installs, and nothing else but Python's own library. Exits with 1 where something is not as
it should be. --shots keeps screenshots, light and dark; --docs those of docs/images.
"""

import base64
import contextlib
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
AXE = pathlib.Path(os.environ.get("WINDOWSILL_CACHE", ROOT / ".cache")) / "axe/node_modules/axe-core/axe.min.js"
WINDOW = 4096
PATIENCE = 60
# What a price may be off: a share of it, or these few tokens, which templates put around messages.
OFF = 0.05
FEW = 12
KEY = "sesame"
RULE = "Rule: never change the public signature of resolve_lookup_value."
# Messages of the recorded session, and characters of each; one is larger than a result may be.
MESSAGES, SHORT, LARGE_AT, LARGE = 15, 600, 6, 9_000
BEGUN = time.monotonic()
# Pictures of docs/images, and which screenshots they are.
DOCS = {"overview-dark": "overview-dark", "conversation": "full", "price": "price"}
HOSTILE = '<img src=x onerror="window.stung = 1"><script>window.stung = 1</script>'


def call(method, url, body=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})}, method=method)
    with urllib.request.urlopen(request, timeout=300) as reply:
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


def chat(url, messages, tools=None, **more):
    """A request, as a client makes it: the answer, and the conversation's id."""
    body = {"model": "demo", "messages": messages, "max_tokens": 8, "temperature": 0, **more} | ({"tools": tools} if tools else {})
    answer, headers = call("POST", f"{url}/v1/chat/completions", body, {"Authorization": f"Bearer {KEY}"})
    return answer, headers["x-windowsill-conversation"]


def replay(url):
    """Steps of the recorded session, made short so that a small model reads them in seconds, and one result that is too large;
    a short chat; and a client's helper."""
    session = json.loads((ROOT / "demo/session.json").read_text())
    history = [{"role": "system", "content": "You repair Django. Answer briefly."}]
    for at, message in enumerate(session["messages"][:MESSAGES]):
        content = message.get("content") or ""
        history.append({**message, "content": content[:LARGE if at == LARGE_AT else SHORT]})
    history.append({"role": "user", "content": "What did you find?"})
    for turns in (LARGE_AT + 2, len(history)):
        id = chat(url, history[:turns], session["tools"])[1]
    chat(url, [{"role": "user", "content": "What grows on a balcony that faces north?"}], max_tokens=1)
    helper = "### Task:\nGenerate a title.\n### Guidelines:\n- Be short.\n### Chat History:\n<chat_history>\nUSER: hello\n</chat_history>"
    chat(url, [{"role": "user", "content": helper}], max_tokens=1)
    return Session(url, id, history, session["tools"])


class Session:
    """The history that a client has, and what the server does with it."""

    def __init__(self, url, id, history, tools):
        self.url, self.id, self.history, self.tools = url, id, history, tools

    def send(self):
        """Sends it again as it is; how many tokens the server evaluated."""
        answer, id = chat(self.url, self.history, self.tools)
        assert id == self.id, f"another conversation: {id}"
        return answer["timings"]["prompt_n"]

    def edits(self):
        return call("GET", f"{self.url}/windowsill/conversations/{self.id}/view", headers={"Authorization": f"Bearer {KEY}"})[0]["edits"]

    def pins(self):
        return call("GET", f"{self.url}/windowsill/conversations/{self.id}/pins", headers={"Authorization": f"Bearer {KEY}"})[0]


def long_talk(url, messages):
    talk = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"Message {n}."} for n in range(messages - 1)]
    headers = {"Authorization": f"Bearer {KEY}", "x-windowsill-session": "long"}
    body = {"model": "demo", "messages": talk, "max_tokens": 1}
    return call("POST", f"{url}/v1/chat/completions", body, headers)[1]["x-windowsill-conversation"]


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
    browser.until("what was saved", "return document.querySelectorAll('#saved b').length === 3")
    browser.until("helpers apart", "return document.getElementById('helpers')?.innerText.includes('1 call of')")
    for mode in (True, False):
        browser.dark(mode)
        accessible(browser, f"the overview, {'dark' if mode else 'light'}")
    browser.shots(shots, "overview")


def conversation(browser, url, id, shots):
    browser.open(f"{url}/#/c/{id}")
    browser.until("rows", "return document.querySelectorAll('.row .v').length > 5")
    browser.until("the gauge", "return !!document.querySelector('.strip') && !!document.querySelector('.chart svg')")
    browser.until("what is pinned", "return !!document.getElementById('pins')")
    text = browser.run(TEXT)
    for part in ("KEPT FOR THE REPLY", "WHAT THE MODEL SEES", "PRESSURE BY REQUEST", "LARGEST MESSAGES", "SPENT", "REWRITES", "GUARDRAILS", "session_requests", "PINNED", "fold "):
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
    browser.until("pins", "return !!document.getElementById('pins')")
    for mode in (True, False):
        browser.dark(mode)
        accessible(browser, f"a conversation, {'dark' if mode else 'light'}")
    browser.shots(shots, "conversation")
    for narrow in (360, 390, 800, 1024):
        browser.wide(narrow)
        time.sleep(0.2)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), f"it scrolls sideways at {narrow} px"
        browser.shot(shots, f"conversation-{narrow}")
    browser.wide(1440)


PRICE = """const dl = document.querySelector('dialog[open] dl.price'); if (!dl || document.querySelector('dialog[open] .btn.primary').disabled) return null;
    const at = [...dl.querySelectorAll('dt')].find((dt) => dt.textContent.startsWith('evaluated again'));
    return at.nextElementSibling.textContent;"""


def price(browser):
    """The price that the dialog says, once it does."""
    said = browser.until("a price", PRICE)
    return int("".join(c for c in said if c.isdigit()))


def do(browser, verb):
    browser.click(verb)
    browser.until("the dialog is done", "return !document.querySelector('dialog[open]')")


def close_to(what, said, evaluated):
    off = abs(said - evaluated)
    print(f"{what}: {said} tokens foretold, {evaluated} evaluated")
    assert off <= max(FEW, OFF * evaluated), f"{what}: {said} tokens were foretold, and the server evaluated {evaluated}"


def fill(browser, name, text):
    """Types into the dialog; the price that stood there goes first."""
    browser.until(f"a field {name!r}", "return !!document.querySelector(`dialog[open] [name=${arguments[0]}]`)", name)
    browser.run("""const i = document.querySelector(`dialog[open] [name=${arguments[0]}]`); i.value = arguments[1];
        i.dispatchEvent(new Event('input', {bubbles: true}))""", name, text)


def choose(browser, wanted, became):
    """Opens a message of a kind, the last in sight: `wanted` as in the list, `became` of it in the view."""
    browser.run("document.querySelector('.list').scrollTop = 1e9")
    script = """const rows = [...document.querySelectorAll('.row')].filter((r) => r.querySelector('.who')?.textContent === arguments[0]
        && r.querySelector('.v').textContent.includes(arguments[1]));
        const r = rows.at(-1); r?.click(); return r ? Number(r.id.slice(1)) : null"""
    at = browser.until(f"a {wanted} that is {became}", "return (() => {" + script + "})()?.toString()", wanted, became)
    browser.until("its message", "return document.getElementById('message')?.innerText.toLowerCase().includes(`message ${arguments[0]} `)", at)
    return int(at)


def results(browser, session):
    """One result out of the prompt as a placeholder, back, out as a preview, and back."""
    session.send()
    for button, verb, became in (("Clear…", "Clear", "as it is"), ("Restore…", "Restore", "cleared"), ("Preview…", "Preview", "as it is"), ("Restore…", "Restore", "preview")):
        before = session.edits()
        choose(browser, "result", became)
        browser.click(button)
        said = price(browser)
        assert session.edits() == before, "the price alone changes nothing"
        do(browser, verb)
        assert session.edits() != before, f"{verb} changed nothing"
        close_to(verb, said, session.send())


def pins(browser, session, shots):
    browser.click("Pin a rule…")
    fill(browser, "text", RULE)
    said = price(browser)
    browser.shot(shots, "price")
    do(browser, "Pin")
    browser.until("it is listed", "return document.getElementById('pins').innerText.includes(arguments[0])", RULE)
    close_to("Pin a text", said, session.send())
    browser.run("document.querySelector('.list').scrollTop = 0")
    browser.until("the message that the pin stands behind", "return [...document.querySelectorAll('.row .v')].some((v) => v.textContent.includes('what is pinned behind it'))")
    browser.run("[...document.querySelectorAll('.row')].find((r) => r.querySelector('.v')?.textContent.includes('what is pinned behind it')).click()")
    browser.until("the pin in it", "return [...document.querySelectorAll('#message pre')].some((pre) => pre.textContent.includes(arguments[0]))", RULE)
    choose(browser, "result", "as it is")
    browser.click("Pin…")
    assert price(browser) == 0, "what stands in the prompt costs nothing to pin"
    do(browser, "Pin")
    browser.until("two pins", "return document.querySelectorAll('#pins ul.plain .pin').length === 2")
    browser.until("how much", "return document.getElementById('pins').innerText.includes('of at most')")
    browser.shots(shots, "pins")


def fold(browser, session):
    before = session.edits()
    browser.click("Fold now…")
    fill(browser, "focus", "the failing test")
    price(browser)
    assert session.edits() == before, "the price alone changes nothing"
    # No model is asked here: the brief is there at once, and its writing has no price.
    brief = browser.until("the brief", "return document.querySelector('dialog[open] details pre')?.textContent")
    told = browser.run("return document.querySelector('dialog[open]').innerText")
    assert "writing the brief" not in told and "Read the brief first" not in told and "made without a model" in told, told
    said = price(browser)
    assert session.edits() == before and RULE in brief, "the brief is shown, and nothing was folded"
    browser.shot(browser.folder, "brief-first")
    do(browser, "Fold")
    edits = session.edits()
    folded = next(edit for edit in edits if edit["rule"] == "fold")
    browser.until("one row for what was folded", "return [...document.querySelectorAll('.row.folded')].length >= 1")
    browser.shots(browser.folder, "folded")
    rows = browser.run("return document.querySelectorAll('.row').length")
    browser.run("document.querySelector('.row.folded').click()")
    browser.until("it opens", "return document.querySelectorAll('.row.inside').length > 0 && document.querySelectorAll('.row').length > arguments[0]", rows)
    browser.until("an original", "return [...document.querySelectorAll('#message summary')].some((s) => s.textContent.includes('The original'))")
    browser.run("document.querySelector('.row.folded').click()")
    browser.until("and closes", "return document.querySelectorAll('.row.inside').length === 0")
    assert edits != before and folded["to"] > folded["from"] and RULE in folded["brief"], "it was folded, and the pin stands in front"
    assert folded["brief"] == brief, "what was shown is what was put in place"
    close_to("Fold", said, session.send())
    browser.until("why it was folded, in words for people", "return [...document.querySelectorAll('.card summary')].some((s) => /^Folded \\d+ messages?, as you asked: /.test(s.textContent))")
    browser.click("Edit the brief…")
    browser.until("nothing is wrong before anything is written", "return document.querySelector('dialog[open] .quote')?.innerText.includes('once you write')")
    assert not browser.run("return document.querySelector('dialog[open] .wrong')"), "it opens with an error"
    fill(browser, "text", "The tuple in resolve_lookup_value is the bug. Next: return the type that came in.")
    said = price(browser)
    do(browser, "Save")
    close_to("Edit the brief", said, session.send())
    browser.click("Undo last…")
    said = price(browser)
    named = browser.run("return document.querySelector('#takes-back').innerText")
    assert named.startswith("Takes back the rewrite that changed the brief ("), named
    do(browser, "Undo")
    close_to("Undo", said, session.send())
    browser.click("Unpin…")
    said = price(browser)
    do(browser, "Unpin")
    assert not any(RULE in str(edit) for edit in session.edits()), "what was pinned is no longer in front of the brief"
    close_to("Unpin", said, session.send())


def waiting(browser, session):
    """What waits for a break costs nothing, and is taken back; and nothing is rewritten while a person says so."""
    browser.click("Fold now…")
    fill(browser, "focus", "names of files")
    browser.until("a choice", "return !!document.querySelector('dialog[open] [value=next_break]')")
    browser.run("document.querySelector('dialog[open] [value=next_break]').click()")
    browser.until("no price", "return document.querySelector('dialog[open] dl.price')?.innerText.includes('no time')")
    assert price(browser) == 0
    do(browser, "Fold")
    browser.until("it waits", "return document.getElementById('waiting')?.innerText.includes('a focus')")
    browser.click("Take back what waits")
    browser.until("nothing waits", "return !document.getElementById('waiting')")
    browser.click("Stop rewriting")
    browser.until("it says so", "return document.getElementById('pins').innerText.includes('Nothing is rewritten')")
    assert session.pins()["paused"]
    browser.click("Resume rewriting")
    browser.until("it says so", "return !document.getElementById('pins').innerText.includes('Nothing is rewritten')")


def curate(browser, shots):
    browser.click("Build new…")
    browser.until("the turns", "return document.querySelectorAll('dialog .segments tr').length > 3")
    browser.run("document.querySelectorAll('dialog .segments input')[1].click()")
    browser.until("the box and the numbers are one", "return document.querySelector('dialog input[name=turns]').value === '1.0'")
    fill(browser, "turns", "1.0, 1.1, 1.3")
    browser.until("and back", "return document.querySelectorAll('dialog .segments input:checked').length === 3")
    browser.shot(shots, "build")
    browser.click("Download messages.json")
    browser.until("what was built", "return document.getElementById('built')?.textContent.includes('messages')")
    fill(browser, "turns", "1.0, 1.1")
    browser.click("Continue here")
    browser.until("the chat", "return document.querySelectorAll('#talk .say').length >= 2")
    browser.run("""window.grew = new Set(); new MutationObserver(() => window.grew.add(document.querySelector('#talk .say:last-child p')?.textContent))
        .observe(document.getElementById('talk'), {childList: true, characterData: true, subtree: true})""")
    before = browser.run("return document.querySelectorAll('#talk .say').length")
    browser.run("""const say = document.querySelector('textarea[name=say]'); say.value = 'And now?'; say.dispatchEvent(new Event('input', {bubbles: true}))""")
    browser.click("Send")
    browser.until("the model answered", "return document.querySelectorAll('#talk .say').length === arguments[0] + 2 && document.querySelector('main').innerText.includes('in the prompt')", before)
    assert browser.run("return window.grew.size") > 3, "the reply grew as it was written"
    accessible(browser, "the chat")
    browser.shot(shots, "chat")


def accessible(browser, where):
    """axe-core finds nothing that keeps anybody out."""
    browser.run(AXE.read_text() + ";window.axe = window.axe ?? axe;")
    found = browser.do("POST", "/execute/async", {"args": [], "script": """const done = arguments[arguments.length - 1];
        axe.run(document, {resultTypes: ['violations']}).then((r) => done(r.violations.map((v) => `${v.id}: ${v.help}: ${v.nodes.map((n) => n.target).slice(0, 3)}`)), (e) => done([String(e)]))"""})
    assert not found, f"{where}, by axe-core:\n" + "\n".join(found)


def place(browser, session):
    """What happens takes nobody's place away: the focus, an opened part, where a text is scrolled to, and what is typed stay."""
    browser.run("document.querySelector('.list').scrollTop = 0")
    browser.run("document.querySelector('.row').click()")
    browser.until("a message", "return !!document.querySelector('#message pre')")
    # It cannot have the focus while what it did last is under way.
    browser.until("the button can be chosen", "return [...document.querySelectorAll('button')].some((b) => b.textContent === 'Stop rewriting' && !b.disabled)")
    browser.run("""const rewrite = [...document.querySelectorAll('.card')].find((c) => c.querySelector('h2')?.textContent.startsWith('Rewrites')).querySelector('details');
        rewrite.open = true; window.held = {rewrite, text: document.querySelector('#message pre')}; window.held.text.scrollTop = 20; window.held.scrolled = window.held.text.scrollTop;
        window.held.button = [...document.querySelectorAll('button')].find((b) => b.textContent === 'Stop rewriting'); window.held.button.focus();
        window.told = document.querySelector('.sub time:last-of-type').getAttribute('datetime')""")
    session.send()
    browser.until("the request shows", "return document.querySelector('.sub time:last-of-type').getAttribute('datetime') !== window.told")
    time.sleep(1)
    kept = browser.run("""return {open: held.rewrite.isConnected && held.rewrite.open, focus: document.activeElement === held.button, text: held.text.isConnected && held.text.scrollTop === held.scrolled}""")
    assert all(kept.values()), f"an event took a place away: {kept}"
    # In a dialog, too: what is typed stays while an agent works.
    browser.click("Pin a rule…")
    fill(browser, "text", "half a")
    session.send()
    time.sleep(1)
    assert browser.run("return document.querySelector('dialog[open] [name=text]').value") == "half a", "what was typed is gone"
    browser.click("Cancel")


def typed(browser, selector, text):
    """Types into a field of the page."""
    browser.run("""const i = document.querySelector(arguments[0]); i.value = arguments[1];
        i.dispatchEvent(new Event(i.tagName === 'SELECT' || i.type === 'checkbox' ? 'change' : 'input', {bubbles: true}))""", selector, text)


def search(browser, session, shots):
    """`/` goes to the box in the header; what it finds anywhere opens at its place, and a history shows what fits a filter."""
    url = session.url
    browser.open(f"{url}/#/")
    browser.until("the overview", "return document.querySelectorAll('main tbody tr').length > 0")
    browser.run("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true, cancelable: true}))")
    assert browser.run("return document.activeElement.id") == "find", "`/` goes to the search"
    typed(browser, "#find", "balcony faces north")
    browser.run("document.querySelector('form.find').requestSubmit()")
    browser.until("a hit, with its conversation", "return document.querySelector('#everywhere .card h2')?.textContent.includes('What grows on a balcony')")
    accessible(browser, "the search")
    typed(browser, "#find", "resolve_lookup_value tuple")
    browser.run("document.querySelector('form.find').requestSubmit()")
    browser.until("hits of the session", "return !!document.querySelector(`#everywhere .hits-all a[href*='${arguments[0]}']`)", session.id)
    browser.shots(shots, "search")
    at = browser.run("const a = document.querySelector(`#everywhere .hits-all a[href*='${arguments[0]}']`); a.click(); return Number(a.hash.split('/')[3])", session.id)
    browser.until("it opens at its place", "return document.getElementById('message')?.innerText.toLowerCase().includes(`message ${arguments[0]} `)", at)
    browser.until("and stands in sight", "const r = document.querySelector('.row[aria-selected=true]')?.getBoundingClientRect(); return r && r.top >= 0 && r.bottom <= innerHeight")
    browser.until("the tools that were called", "return document.querySelectorAll('#filters [name=tool] option').length > 1")
    rows = "const rows = [...document.querySelectorAll('.row')]; return rows.length > 0 && rows.every((r) => %s) && document.querySelector('#filters [role=status]')?.textContent.includes('message')"
    typed(browser, "#filters [name=role]", "tool")
    browser.until("results alone", rows % "r.querySelector('.who').textContent === 'result'")
    browser.run("document.querySelector('#filters [name=changed]').click()")
    browser.until("what was changed alone", rows % "r.classList.contains('changed') || r.classList.contains('inside')")
    browser.shots(shots, "filter")
    browser.click("Show all")
    browser.until("all of it", "return !document.querySelector('#filters [role=status]') && document.querySelectorAll('.row .who').length > 5 && document.querySelector('#filters [name=role]').value === ''")
    typed(browser, "#filters [name=text]", "WHAT DID YOU FIND")
    browser.until("what holds the words", rows % "r.querySelector('.t').textContent.includes('What did you find')")
    accessible(browser, "a filtered history")
    browser.click("Show all")


def requests(browser, session, shots):
    """Where the time of each request went, and what of it was sent otherwise than it came."""
    session.send()
    browser.open(f"{session.url}/#/requests")
    browser.until("the request, with its client", "return [...document.querySelectorAll('.requests tbody tr')].some((r) => r.textContent.includes('Python-urllib') && r.querySelector('.link .time'))")
    assert browser.run("return [...document.querySelectorAll('.three .figure')].every((f) => f.textContent.includes('in the last'))"), "the figures are of the last hour"
    browser.run("[...document.querySelectorAll('.requests tbody tr')].find((r) => r.querySelector(`a[href*='${arguments[0]}']`)).querySelector('.link .time').closest('button').click()", session.id)
    told = browser.until("the phases", "return document.querySelector('.detail .phases')?.textContent")
    for part in ("reading the prompt", " new", "from the cache", "writing the answer"):
        assert part in told, f"no {part!r} in {told!r}"
    headers = {"Authorization": f"Bearer {KEY}"}
    events = call("GET", f"{session.url}/windowsill/events?last=50&kind=model_usage&conversation={session.id}", headers=headers)[0]["events"]
    last = [e["data"] for e in events if e["data"]["role"] == "main"][-1]
    assert 0.8 * last["milliseconds"] <= sum(last["phases"].values()) <= last["milliseconds"] + 10, f"the phases are not the whole: {last}"
    accessible(browser, "the requests, one of them open")
    # One that is under way stands above the others until it is answered.
    long = "Count to a hundred. " + " ".join(f"Line {n} of {n * n}." for n in range(180))
    slow = threading.Thread(target=chat, args=(session.url, [{"role": "user", "content": long}]), kwargs={"max_tokens": 4})
    slow.start()
    browser.until("a request under way", "return document.querySelector('tr.running')?.textContent.includes('Count to a hundred.')")
    at = browser.until("what it is at", "return document.querySelector('tr.running .under')?.textContent")
    assert at in ("waiting for the server", "writing the answer"), at
    slow.join()
    browser.until("it is answered", "return !document.querySelector('tr.running')")
    browser.shots(shots, "requests")
    browser.click("Received and sent…")
    browser.until("both sides", "return document.querySelectorAll('#sides .pair').length > 5 && document.querySelectorAll('#sides mark').length > 0")
    assert browser.run("return [...document.querySelectorAll('#sides mark')].some((m) => m.textContent.includes('windowsill recall'))"), "what was put in place is marked"
    accessible(browser, "both sides of a request")
    browser.run("document.querySelector('dialog [name=only]').click()")
    browser.until("what differs alone", "return document.querySelectorAll('#sides .pair').length > 0 && !document.querySelector('#sides .pair.alike')")
    browser.shots(shots, "sides")
    browser.click("As JSON")
    browser.until("both as JSON", "return document.querySelectorAll('#sides pre').length === 2")
    # It is sent again with another line: both answers stand beside each other, and nothing of it is kept.
    kept, newest = session.edits(), events[-1]["id"]
    browser.click("Try a change…")
    browser.until("the form", "const radio = document.querySelector('#again [value=line]'); radio?.click(); return !!radio")
    browser.until("the line", "return !!document.querySelector('#again [name=line]')")
    typed(browser, "#again [name=line]", "30")
    browser.click("Send again")
    answers = browser.until("both answers", "const all = [...document.querySelectorAll('#answers .say')]; return all.length === 2 && all.map((a) => a.innerText)")
    assert answers[0].startswith("The answer on record") and "tokens read" in answers[1], answers
    accessible(browser, "both answers")
    browser.shots(shots, "again")
    events = call("GET", f"{session.url}/windowsill/events?since={newest}&conversation={session.id}", headers=headers)[0]["events"]
    assert session.edits() == kept and all(e["data"].get("role") == "summary" for e in events), f"it is kept: {events}"
    browser.click("Close")
    whole, masked = (call("GET", f"{session.url}/windowsill/conversations/{session.id}/request?{more}", headers=headers)[0] for more in ("replaced=false", "replaced"))
    assert len(whole["messages"]) == len(masked["messages"]) == last["messages"] and "resolve_lookup_value" in str(whole) and "resolve_lookup_value" not in str(masked)


def spare(browser, program, folder, model, environment):
    """Of many tools that were never called, the page says what they take, has them named by index at a click, and takes that back. The
    model's own template has no tools, so that of the demo stands in for it."""
    template = ["--chat-template", str(ROOT / "demo/chat-template.jinja")]
    with running(model + template, "listening", stderr=subprocess.DEVNULL) as ready:
        serve = [program, "serve", "--data-dir", f"{folder}/tools", "--listen", "127.0.0.1:0", "--upstream", ready.split()[-1]]
        with running(serve, "listening on", env=environment, cwd=folder) as line:
            url = line.split()[-1]
            tools = [{"type": "function", "function": {"name": f"tool_{n}", "description": "Does nothing.", "parameters": {"type": "object", "properties": {}}}} for n in range(5)]
            talk = [{"role": "user", "content": "Which of your tools does nothing?"}]
            id = chat(url, talk, tools, max_tokens=1)[1]
            wanted = lambda: Session(url, id, [], tools).pins()["tools"]
            browser.open(f"{url}/#/c/{id}")
            unlocked(browser)
            told = browser.until("what the tools take", "return document.querySelector('#tools h2')?.textContent")
            assert "5 tools" in told and "0 ever called" in told, told
            assert wanted() is None
            browser.click("Set it for this conversation")
            browser.until("it is set", "return document.querySelector('#tools')?.innerText.includes('from its next request on')")
            assert wanted() == "auto"
            accessible(browser, "tools by index")
            browser.click("Take it back")
            browser.until("it is taken back", "return document.querySelector('#tools')?.innerText.includes('from its next request on') === false")
            assert wanted() is None


def unlocked(browser):
    browser.until("the form for the key", "return !!document.querySelector('dialog input[name=key]')")
    browser.run("document.querySelector('dialog input').value = arguments[0]", KEY)
    browser.click("Open")


def largest(browser, session, shots):
    """What fills the window stands with what can be done about it, beside what the tools take that were never called."""
    browser.open(f"{session.url}/#/c/{session.id}")
    told = browser.until("the tools", "return document.querySelector('#tools h2')?.textContent")
    called = len({call["function"]["name"] for m in session.history for call in m.get("tool_calls", [])})
    for part in (f"{len(session.tools)} tool", f"{called} ever called"):
        assert part in told, f"no {part!r} in {told!r}"
    session.send()
    before = session.edits()
    act = browser.until("a step beside a message", "const b = [...document.querySelectorAll('#largest .steps button')].find((b) => b.textContent === 'Clear…'); b?.click(); return b?.textContent")
    said = price(browser)
    browser.shot(shots, "largest")
    do(browser, act.rstrip("…"))
    assert session.edits() != before, f"{act} changed nothing"
    close_to(f"{act} in the list of the largest", said, session.send())
    browser.run("document.querySelector('#tools td .link').click()")
    browser.until("the calls of a tool", "return document.querySelector('#filters [role=status]')?.textContent.includes('message')")
    browser.click("Show all")


def house(browser, url, id, shots):
    """A conversation is called, starred, written down and deleted from its own page."""
    browser.open(f"{url}/#/c/{id}")
    browser.click("☆ Star")
    browser.until("a star", "return document.querySelector('.house [aria-pressed=true]')?.textContent.includes('Starred')")
    browser.click("Rename…")
    fill(browser, "title", "Plants for the shade")
    do(browser, "Rename")
    browser.until("its name", "return document.querySelector('.title h1')?.textContent === 'Plants for the shade'")
    browser.click("Export…")
    browser.click("Markdown, for people")
    browser.until("it was saved", "return document.getElementById('exported').textContent.includes('were saved')")
    browser.click("Close")
    browser.shot(shots, "house")
    browser.open(f"{url}/#/")
    browser.until("name and star in the list", "return [...document.querySelectorAll('.conversations tr')].some((r) => r.textContent.includes('Plants for the shade') && r.textContent.includes('★'))")
    browser.open(f"{url}/#/c/{id}")
    browser.click("Delete…")
    do(browser, "Delete")
    browser.until("it is gone", "return location.hash === '#/' && document.querySelectorAll('.conversations tr').length > 1 && !document.body.innerText.includes('Plants for the shade')")


def hostile(browser, url, id):
    browser.open(f"{url}/#/c/{id}")
    browser.until("its row", "return document.querySelector('.row .t')?.textContent.includes('<img')")
    browser.run("document.querySelector('.row').click()")
    browser.until("its text", "return document.getElementById('message')?.innerText.includes('onerror')")
    assert browser.run("return window.stung === undefined && !document.querySelector('main img, main script')"), "text became HTML"


def counts(browser, session):
    """The list, the conversation, and the report count the same rewrites."""
    browser.open(f"{session.url}/#/c/{session.id}")
    card = "[...document.querySelectorAll('.card h2')].find((h) => h.textContent.startsWith('Rewrites'))"
    told = browser.until("the rewrites", f"return {card}?.textContent")
    count = told.split("·")[1].split(" freed")[0].strip()
    browser.open(f"{session.url}/#/")
    listed = browser.until("the list", "return [...document.querySelectorAll('.conversations tbody tr')].find((r) => r.querySelector(`a[href*='${arguments[0]}']`))?.children[6].textContent", session.id)
    out = call("GET", f"{session.url}/windowsill/report", headers={"Authorization": f"Bearer {KEY}"})[0]
    assert listed == count and int(count.replace(",", "")) <= out["rewrites"], f"{listed} in the list, {told} on the page, {out['rewrites']} in the report"


def live(browser, url):
    browser.open(f"{url}/#/")
    browser.until("the overview", "return document.querySelectorAll('main tbody tr').length > 0")
    chat(url, [{"role": "user", "content": "Something new."}])
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


def full(browser, url, shots):
    """The picture of README: the recorded session in a window that is nearly full, with what was folded open."""
    session = json.loads((ROOT / "demo/session.json").read_text())
    history, id = [{"role": "system", "content": "You repair Django. Answer briefly."}], None
    for message in session["messages"]:
        history.append({**message, "content": (message.get("content") or "")[:1_500]})
        if message["role"] == "assistant":
            continue
        body = {"model": "demo", "messages": history, "tools": session["tools"], "max_tokens": 8, "temperature": 0}
        headers = {"Authorization": f"Bearer {KEY}", "x-windowsill-session": "full", "User-Agent": "opencode/1.18"}
        sent = call("POST", f"{url}/v1/chat/completions", body, headers)[1]
        id = sent["x-windowsill-conversation"]
        edits = call("GET", f"{url}/windowsill/conversations/{id}/view", headers={"Authorization": f"Bearer {KEY}"})[0]["edits"]
        if any(edit["rule"] == "fold" for edit in edits) and int(sent["x-windowsill-prompt-tokens"]) > WINDOW * 0.5:
            break
    browser.open(f"{url}/#/c/{id}")
    browser.until("what was folded", "return !!document.querySelector('.row.folded')")
    browser.run("document.querySelector('.row.folded').click()")
    browser.until("it opens", "return document.querySelectorAll('.row.inside').length > 3")
    browser.run("[...document.querySelectorAll('.row.inside')].find((row) => row.innerText.includes('result'))?.click()")
    browser.until("an original", "return !!document.querySelector('#message details')")
    browser.run("scrollTo(0, 0); document.activeElement?.blur()")
    browser.shot(shots, "full")


def without_server(browser, program, folder, id, environment):
    """The record is readable without a server, as the last line of the demo opens it; and what fails is seen."""
    copy = pathlib.Path(folder) / "copy"
    shutil.copytree(pathlib.Path(folder) / "data", copy, ignore=shutil.ignore_patterns("*.lock", "lock"))
    # Nothing listens on port 9, "discard".
    serve = [program, "serve", "--data-dir", str(copy), "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9"]
    with running(serve, "listening on", env=environment, cwd=folder) as line:
        url = line.split()[-1]
        browser.open(url)
        unlocked(browser)
        browser.until("the server is told to be down", "return document.getElementById('status').classList.contains('down')")
        browser.run("location.hash = `#/c/${arguments[0]}`", id)
        browser.until("rows", "return document.querySelectorAll('.row .v').length > 1")
        browser.until("title, gauge, actions and pins", "return !!document.querySelector('.title h1') && !!document.querySelector('.strip') && !!document.getElementById('pins') && document.querySelectorAll('.actions .btn').length > 2")
        status = str(failing(url))
        browser.run("location.hash = '#/requests'")
        browser.until("the failed request", "return document.querySelector('tr.failed')?.innerText.includes(arguments[0])", status)
        accessible(browser, "the requests")


def fleet(browser, program, folder, model, environment):
    """Of several servers, the overview says which gets no requests, and why."""
    with running(model, "listening", stderr=subprocess.DEVNULL) as ready:
        # Nothing listens on port 9, "discard".
        servers = ["--upstream", "http://127.0.0.1:9", "--upstream", ready.split()[-1]]
        serve = [program, "serve", "--data-dir", f"{folder}/fleet", "--listen", "127.0.0.1:0", *servers]
        with running(serve, "listening on", env=environment, cwd=folder) as line:
            url = line.split()[-1]
            chat(url, [{"role": "user", "content": "Is anybody there?"}], max_tokens=1)
            browser.open(url)
            unlocked(browser)
            state = "return [...document.querySelectorAll('#fleet tbody tr')].map((row) => row.cells[1].innerText.split('\\n')[0]).join()"
            browser.until("one is down, one ready", f"return (() => {{ {state} }})() === 'down,ready'")
            listed = call("GET", f"{url}/windowsill/upstreams", headers={"Authorization": f"Bearer {KEY}"})[0]["upstreams"]
            call("POST", f"{url}/windowsill/upstreams/{listed[1]['upstream']}/drain", {}, {"Authorization": f"Bearer {KEY}"})
            browser.open(url)
            browser.until("it is drained", f"return (() => {{ {state} }})().startsWith('down,draining')")
            accessible(browser, "several servers")


def failing(url):
    """The status that a request to a server that is gone gets."""
    try:
        chat(url, [{"role": "user", "content": "Is anybody there?"}])
    except urllib.error.HTTPError as problem:
        return problem.code
    raise AssertionError("a server that is gone answered")


def main():
    arguments = sys.argv[1:]
    shots = pathlib.Path(arguments[arguments.index("--shots") + 1]) if "--shots" in arguments else None
    docs = "--docs" in arguments
    shots = shots or (pathlib.Path(tempfile.mkdtemp()) if docs else None)
    program = str(pathlib.Path(arguments[0]).resolve())
    for needed in ("chromium", "chromedriver"):
        if not shutil.which(needed):
            sys.exit(f"{needed} is missing: scripts/servers/install browser installs it")
    if not AXE.is_file():
        sys.exit("axe-core is missing: scripts/servers/install browser installs it")
    exports = subprocess.run([ROOT / "scripts/servers/install", "--env"], capture_output=True, text=True, check=True).stdout
    installed = dict(line.removeprefix("export ").split("=", 1) for line in exports.splitlines() if line.startswith("export "))
    if shots:
        shots.mkdir(parents=True, exist_ok=True)
    # The smallest model writes no briefs: they are made without one. One slot and no prompts kept beside it: what the server evaluates is what the page's price is about.
    model = [installed["WINDOWSILL_PYTHON"], installed["WINDOWSILL_LLAMA_SERVER"], installed["WINDOWSILL_MODEL"], "--ctx", str(WINDOW),
             "--alias", "demo", "--cache-ram", "0", "--predict", "48", "--with-parent"]
    with tempfile.TemporaryDirectory() as folder, running(model, "listening", stderr=subprocess.DEVNULL) as ready:
        (pathlib.Path(folder) / "config.toml").write_text("[context]\nbackground = false\nstrategy = \"truncate\"\n[ceiling]\nsession_requests = 500\n")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("WINDOWSILL_")} | {"WINDOWSILL_API_KEY": KEY, "RUST_LOG": "warn"}
        serve = [program, "serve", "--data-dir", f"{folder}/data", "--listen", "127.0.0.1:0", "--upstream", ready.split()[-1]]
        with running(serve, "listening on", env=environment, cwd=folder) as line, running(["chromedriver", "--port=0"], "started successfully on port") as started:
            url = line.split()[-1]
            session = replay(url)
            browser = Browser(int(started.rstrip(".\n").split()[-1]))
            browser.folder = shots
            try:
                everything(browser, session)
                spare(browser, program, folder, model, environment)
                if docs:
                    full(browser, url, shots)
                fleet(browser, program, folder, model, environment)
                without_server(browser, program, folder, session.id, environment)
            except BaseException:
                browser.shot(shots or pathlib.Path(tempfile.gettempdir()), "failed")
                raise
            finally:
                browser.do("DELETE", "")
    for name, of in DOCS.items() if docs else ():
        shutil.copyfile(shots / f"{of}.png", ROOT / f"docs/images/{name}.png")
    print(f"the page is as it should be, after {time.monotonic() - BEGUN:.0f} s")


def everything(browser, session):
    url, shots = session.url, browser.folder
    overview(browser, url, shots)
    conversation(browser, url, session.id, shots)
    results(browser, session)
    pins(browser, session, shots)
    fold(browser, session)
    waiting(browser, session)
    place(browser, session)
    curate(browser, shots)
    search(browser, session, shots)
    largest(browser, session, shots)
    counts(browser, session)
    requests(browser, session, shots)
    house(browser, url, chat(url, [{"role": "user", "content": "Which plants like shade?"}], max_tokens=1)[1], shots)
    hostile(browser, url, chat(url, [{"role": "user", "content": HOSTILE}], max_tokens=1)[1])
    live(browser, url)
    long(browser, url, long_talk(url, 20_000))
    dropped = call("GET", f"{url}/windowsill/events?last=200&kind=silent_truncation", headers={"Authorization": f"Bearer {KEY}"})[0]["events"]
    assert not dropped, f"the server dropped nothing: {dropped}"
    wrong = [entry["message"] for entry in browser.do("POST", "/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]
    wrong = [message for message in wrong if " 401 " not in message and " 409 " not in message]
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    main()
