"""Linters of styles, doctest, twisted's trial, ward, uvu."""
from base import *

@several([("pycodestyle", "pycodestyle src", "pycodestyle --max-line-length 60 src"), ("pydocstyle", "pydocstyle src"), ("vulture", "vulture src")], sizes=("small", "medium", "large"))
def py_style(m, c):
    for f, w in enumerate(m.pick(m.n(4, 20, 40))):
        L = []
        for t in range(m.n(4, 10, 14)):
            L += [f"def {w}_{t}(a):", f"    x = [a,{m.num()}]", "    return  x", ""]
        if f % 5 == 1:
            v = f"{w}_left_{m.num()}"
            if c["name"] == "vulture": L += [f"def {v}():", "    return 1", f"    print('never {w}')"]; m.plant("unreachable code after 'return'", f"src/{w}_{f}.py:{len(L)}")
            elif c["name"] == "pycodestyle": L += [f"if True:", f"\tx = {m.num()}", f"        y = 1"]; m.plant("W191 indentation contains tabs", f"src/{w}_{f}.py:{len(L) - 1}")
            else: L += ["def broken(:"]; m.plant("Cannot parse file", f"src/{w}_{f}.py")
        m.add(f"src/{w}_{f}.py", "\n".join(L) + "\n")

@several([("doctest", "python -m doctest shop/*.py", "for f in shop/*.py; do python3 -m doctest $f; done"), ("doctest.v", "python -m doctest -v shop/all.py", "for f in shop/*.py; do python3 -m doctest -v $f; done")], sizes=("small", "medium", "large"))
def doctests(m, c):
    for f, w in enumerate(m.pick(m.n(3, 10, 20))):
        L = []
        for t in range(m.n(4, 10, 12)):
            a, bad = m.num(), t == 1 and f % 3 == 0
            L += [f"def {w}_{t}(n):", '    """Adds.', "", f"    >>> {w}_{t}({a})", f"    {a + 1 + bad}", '    """', "    return n + 1", ""]
            if bad: m.plant(f"{a + 1}", f"{w}_{f}.py\", line {len(L) - 4}", f"{w}_{f}.{w}_{t}")
        m.add(f"shop/{w}_{f}.py", "\n".join(L) + "\n")

@several([("trial", "trial tests", "PYTHONPATH=. trial tests"), ("trial.bw", "trial --reporter=bwverbose tests", "PYTHONPATH=. trial --reporter=bwverbose tests")], sizes=("small", "medium", "large"))
def trial(m, c):
    m.add("tests/__init__.py", "")
    for f, w in enumerate(m.pick(m.n(3, 10, 16))):
        L = ["from twisted.trial import unittest", "", f"class {w.title()}Tests(unittest.TestCase):"]
        for t in range(m.n(5, 14, 14)):
            name = f"test_{m.word()}_{t}"; L.append(f"    def {name}(self):")
            if t == 2 and f % 3 == 0:
                a = m.num(); L.append(f"        self.assertEqual({a}, {a + 1})"); m.plant(f"{a} != {a + 1}", f"test_{w}_{f}.py\", line {len(L)}", name)
            elif t == 3 and f % 5 == 0:
                L.append(f"        raise ValueError('no {w} left at {m.num()}')"); m.plant(f"no {w} left at", f"test_{w}_{f}.py\", line {len(L)}", name)
            else: L.append("        self.assertTrue(1)")
        m.add(f"tests/test_{w}_{f}.py", "\n".join(L) + "\n")

@several([("ward", "ward", "ward --path tests --progress-style none"), ("ward.module", "ward", "ward --path tests --test-output-style dots-module")], sizes=("small", "medium"))
def ward(m, c):
    for f, w in enumerate(m.pick(m.n(3, 8, 12))):
        L = ["from ward import test", ""]
        for t in range(m.n(4, 10, 12)):
            name = f"{w} keeps {m.word()} {t}"; L += [f'@test("{name}")', "def _():"]
            if t == 1 and f % 3 == 0: a = m.num(); L.append(f"    assert {a} == {a + 1}"); m.plant(f"{a + 1}", f"test_{w}_{f}.py:{len(L) - 1}", name)
            else: L.append("    assert True")
            L.append("")
        m.add(f"tests/test_{w}_{f}.py", "\n".join(L) + "\n")

@several([("jshint", "npx jshint src"), ("jshint.unix", "npx jshint --reporter=unix src"), ("jshint.verbose", "npx jshint --verbose src"), ("standard", "npx standard", "standard 'src/*.js'")], sizes=("small", "medium", "large"))
def jshint(m, c):
    for f, w in enumerate(m.pick(m.n(4, 20, 34))):
        p = f"src/{w}_{f}.js"; L = []
        for t in range(m.n(4, 10, 14)): L += [f"exports.{w}{t} = function (a) {{", f"  var b = a == {m.num()}", "  return b", "}"]
        if f % 5 == 1:
            L += [f"exports.bad = function () {{ return 1 +; }}"]
            m.plant({"standard": "Parsing error"}.get(c["name"], "Expected an identifier and instead saw ';'"), f"{p}:{len(L)}" if c["name"] in ("jshint.unix", "standard") else p)
        m.add(p, "\n".join(L) + "\n")

@several([("htmlhint", "npx htmlhint site"), ("htmlhint.unix", "npx htmlhint --format unix site", "npx htmlhint --format unix site"), ("djlint", "djlint site", "djlint site --lint")], sizes=("small", "medium", "large"))
def htmlhint(m, c):
    for f, w in enumerate(m.pick(m.n(3, 12, 24))):
        p = f"site/{w}_{f}.html"; L = ["<!DOCTYPE html>", "<html>", "<head><title>x</title></head>", "<body>"]
        for t in range(m.n(4, 10, 14)): L += [f"<IMG src=\"{m.word()}.png\">"]
        if f % 4 == 1:
            L += [f"<p id=\"{w}\">x</p>", f"<p id=\"{w}\">y</p>"]
            if c["name"] != "djlint": m.plant(f"The id value [ {w} ] must be unique.", f"{p}:{len(L)}" if c["name"].endswith("unix") else p)
        m.add(p, "\n".join(L + ["</body>", "</html>"]) + "\n")

@several([("markdownlint", "npx markdownlint-cli2 docs/*.md", "npx markdownlint-cli2 'docs/*.md'")], sizes=("small", "medium", "large"))
def markdownlint(m, c):
    for f, w in enumerate(m.pick(m.n(3, 12, 24))):
        L = [f"# {w}", ""]
        for t in range(m.n(4, 10, 14)): L += [f"The {m.word()} is here.", ""]
        if f % 3 == 1: L += [f"[{w}](#no-{w})"]; m.plant("MD051/link-fragments", f"docs/{w}_{f}.md:{len(L)}")
        m.add(f"docs/{w}_{f}.md", "\n".join(L) + "\n")

@several([("uvu", "npx uvu tests", "npx uvu tests")], sizes=("small", "medium", "large"))
def uvu(m, c):
    for f, w in enumerate(m.pick(m.n(3, 8, 14))):
        L = ["const { test } = require('@TOOLS@/node_modules/uvu');", "const assert = require('@TOOLS@/node_modules/uvu/assert');"]
        for t in range(m.n(4, 10, 12)):
            name = f"keeps {m.word()} of {w} {t}"; a = m.num(); bad = t == 2 and f % 3 == 0
            L.append(f"test('{name}', () => {{ assert.is({a}, {a + bad}); }});")
            if bad: m.plant(f"{a}", f"{w}_{f}.js:{len(L)}", name)
        m.add(f"tests/{w}_{f}.js", "\n".join(L + ["test.run();"]) + "\n")
