from base import *

def py_tests(m, style="pytest"):
    """Test files with failures of several kinds. Returns nothing; plants."""
    files = m.n(3, 12, 30); per = m.n(5, 18, 22); k = m.n(2, 4, 7)
    fails = sorted(m.chosen(files * per, k))
    kinds = ["eq", "exc", "dict", "in", "raise", "deep"]
    n = 0
    for f, w in enumerate(m.pick(files)):
        path = f"tests/{m.r.choice(['unit','integration'])}/test_{w}_{f}.py"
        lines = ["import pytest" if style == "pytest" else "import unittest", f"from shop.{w}_{f} import load, total", "", ""]
        m.add(f"shop/{w}_{f}.py", f"def total(items):\n    return sum(items)\n\n\ndef load(name, table):\n    # looked up by name\n    return table[name]\n\n\ndef outer(name, table):\n    return load(name, table)\n")
        if style == "unittest": lines += [f"class {w.title()}Test(unittest.TestCase):"]
        for t in range(per):
            ind = "    " if style == "unittest" else ""
            arg = "self" if style == "unittest" else ""
            name = f"test_{w}_keeps_{m.word()}_{n}"
            eq = (lambda a, b: f"self.assertEqual({a}, {b})") if style == "unittest" else (lambda a, b: f"assert {a} == {b}")
            lines.append(f"{ind}def {name}({arg}):")
            if n in fails:
                kind = kinds[fails.index(n) % len(kinds)]
                a, b = m.num(), m.num()
                if kind == "eq":
                    lines += [f"{ind}    value = total([{a}, 1])", f"{ind}    " + eq("value", b)]; at = len(lines)
                    msg = f"{a+1} != {b}" if style == "unittest" else f"assert {a+1} == {b}"
                elif kind == "exc":
                    lines += [f"{ind}    table = {{'a{a}': {b}}}", f"{ind}    " + eq(f"load('missing_{b}', table)", b)]; at = len(lines)
                    msg = f"KeyError: 'missing_{b}'"
                elif kind == "dict":
                    lines += [f"{ind}    got = {{'id': {a}, 'name': '{w}', 'tags': ['a', 'b']}}", f"{ind}    " + eq("got", f"{{'id': {b}, 'name': '{w}', 'tags': ['a', 'b']}}")]; at = len(lines)
                    msg = f"'id': {a}"
                elif kind == "in":
                    lines += [f"{ind}    names = ['{w}', 'b']", f"{ind}    " + (f"self.assertIn('q{a}', names)" if style == "unittest" else f"assert 'q{a}' in names")]; at = len(lines)
                    msg = f"'q{a}' not found in ['{w}', 'b']" if style == "unittest" else f"assert 'q{a}' in ['{w}', 'b']"
                elif kind == "raise":
                    lines += [f"{ind}    if total([1]):", f"{ind}        raise ValueError('{w} has no {m.word()} after {a} tries')"]; at = len(lines)
                    msg = lines[-1].split("'")[1]
                else:
                    lines += [f"{ind}    from shop.{w}_{f} import outer", f"{ind}    outer('deep_{a}', {{}})"]; at = len(lines)
                    msg = f"KeyError: 'deep_{a}'"
                sep = '", line ' if style == "unittest" else ":"
                m.plant(msg, f"{path}{sep}{at}", name)
            else:
                lines.append(f"{ind}    " + eq("total([1, 2])", 3))
            lines += [""] + ([""] if style != "unittest" else [])
            n += 1
        m.add(path, "\n".join(lines) + "\n")
    for d in ("shop", "tests", "tests/unit", "tests/integration"): m.add(f"{d}/__init__.py", "")

@several([
    ("pytest.plain", "pytest"), ("pytest.v", "pytest -v"), ("pytest.vv", "python -m pytest -vv"),
    ("pytest.short", "pytest --tb=short -v"), ("pytest.q", "cd /home/dev/shop && pytest -q", "pytest -q"),
    ("pytest.native", "pytest --tb=native"), ("pytest.color", "pytest -v --color=yes"), ("pytest.xdist", "pytest -n 2 -v"),
    ("pytest.rA", "pytest -v -rA"), ("pytest.long", "pytest -v -l --tb=long 2>&1"),
])
def pytest_(m, c):
    py_tests(m)
    if c["name"] in ("pytest.native",):
        for p in m.planted: p["place"] = p["place"].replace(":", '", line ')

@several([("pytest.no", "pytest -v --tb=no")])
def pytest_no(m, c):
    py_tests(m)
    for p in m.planted: p.update(message=p.pop("name"), place=p.pop("place").split(":")[0])

@several([("pytest.log", "make test", "pytest -v -s -o log_cli=true -o log_cli_level=DEBUG")], sizes=("medium", "large"))
def pytest_log(m, c):
    py_tests(m)
    m.add("conftest.py", "import logging, pytest\nlog=logging.getLogger('shop')\n@pytest.fixture(autouse=True)\ndef noise(request):\n    for i in range(4):\n        log.debug('opening %s step %d', request.node.name, i)\n    log.error('error: retrying (expected in tests)')\n    print('ready')\n    yield\n")

@several([("pytest.collect", "pytest -v")])
def pytest_collect(m, c):
    py_tests(m); m.planted.clear()
    bad = m.pick(3)
    m.add("tests/unit/test_broken.py", f"import os\nfrom shop.{bad[0]}_missing import nothing\n\n\ndef test_a():\n    pass\n")
    m.add("tests/unit/test_syntax.py", f"def test_b(:\n    pass\n")
    m.plant(f"ModuleNotFoundError: No module named 'shop.{bad[0]}_missing'", "tests/unit/test_broken.py:2")
    m.plant("SyntaxError: invalid syntax", "tests/unit/test_syntax.py")

@several([("pytest.pass", "pytest -v")], sizes=("medium", "large"))
def pytest_pass(m, c):
    for i, w in enumerate(m.pick(m.n(3, 12, 30))):
        m.add(f"tests/test_{w}_{i}.py", "\n".join(f"def test_raises_error_on_failed_{m.word()}_{j}():\n    assert True\n" for j in range(20)))
    m.add("tests/test_zz.py", "import warnings\ndef test_w():\n    warnings.warn('old api of ledger', DeprecationWarning)\n")
    m.plant(" passed")
    m.plant("DeprecationWarning: old api of ledger", "tests/test_zz.py:3")

@several([("unittest.v", "python -m unittest discover -v", "python -m unittest discover -v -t . -s tests"), ("unittest.q", "python -m unittest", "python -m unittest discover -t . -s tests"), ("nose2.v", "nose2 -v", "nose2 -v -t . -s tests")])
def unittest_(m, c): py_tests(m, "unittest")

@several([("tox", "tox", "tox -e py")], sizes=("medium",))
def tox(m, c):
    py_tests(m)
    m.add("tox.ini", "[tox]\nskipsdist = true\nenv_list = py\n[testenv]\ncommands = python -m pytest -v tests\nallowlist_externals = python\nsystem_site_packages = true\nskip_install = true\ndeps = pytest\n")

def py_src(m, per_file):
    """Source files with type and lint errors: (path, line, name of a kind)."""
    files = m.n(2, 8, 25); planted = []
    for f, w in enumerate(m.pick(files)):
        path = f"shop/{w}/{w}_{f}.py"
        m.add(f"shop/{w}/__init__.py", "")
        lines = ['"""Doc."""', "import os", "import json", ""]
        for i in range(m.n(6, 12, 16)):
            fn = f"{m.word()}_{i}"
            lines += ["", f"def {fn}_of(x: int, y: str) -> int:", '    """Doc."""', f"    z = x + {m.num()}"]
            if i in per_file(m, i, f):
                kind = m.r.choice(["ret", "arg", "attr", "name"])
                if kind == "ret": lines.append(f"    return y")
                elif kind == "arg": lines.append(f"    return {fn}_of(y, x)")
                elif kind == "attr": lines.append(f"    return x.{m.word()}_{m.num()}")
                else: lines.append(f"    return undefined_{m.word()}_{m.num()} + z")
                planted.append((path, len(lines), kind, lines[-1].strip()))
            else: lines.append("    return z")
        m.add(path, "\n".join(lines) + "\n")
    m.add("shop/__init__.py", "")
    return planted
few = lambda m, i, f: {2} if f % 2 == 0 else set()
some = lambda m, i, f: {1, 3, 5} if m.size == "small" else ({2} if f % 3 else {1, 4})

def typed(m, c, plant, how=few):
    for path, line, kind, code in py_src(m, how): plant(path, line, kind, code)

@several([("mypy", "mypy shop"), ("mypy.pretty", "mypy --pretty --show-column-numbers shop"), ("mypy.color", "mypy shop", "FORCE_COLOR=1 MYPY_FORCE_COLOR=1 mypy shop")])
def mypy(m, c):
    def plant(path, line, kind, code):
        if kind == "ret": msg = 'Incompatible return value type (got "str", expected "int")'
        elif kind == "arg": msg = "Argument 1 to"
        elif kind == "attr": msg = f'"int" has no attribute "{code.split("x.")[1]}"'
        else: msg = f'Name "{code.split()[1]}" is not defined'
        m.plant(msg, f"{path}:{line}")
    typed(m, c, plant, some)
@several([("pyright", "npx pyright shop", "pyright shop"), ("basedpyright", "basedpyright shop")])
def pyright(m, c):
    def plant(path, line, kind, code):
        if kind == "ret": msg = 'Type "str" is not assignable to return type "int"'
        elif kind == "arg": msg = 'Argument of type "str" cannot be assigned to parameter "x" of type "int"'
        elif kind == "attr": msg = f'Cannot access attribute "{code.split("x.")[1]}" for class "int"'
        else: msg = f'"{code.split()[1]}" is not defined'
        m.plant(msg, f"{path}:{line}")
    typed(m, c, plant, few)
@several([("ruff", "ruff check ."), ("ruff.concise", "ruff check --output-format concise"), ("ruff.grouped", "ruff check --output-format=grouped ."), ("flake8", "flake8 shop"), ("pylint", "pylint shop"), ("pylint.E", "pylint --disable=C,R shop")])
def lint(m, c):
    tool = c["name"]
    def plant(path, line, kind, code):
        if kind == "name":
            n = code.split()[1]
            if tool.startswith("ruff"): m.plant(f"Undefined name `{n}`", f"{path}:{line}" if "grouped" not in tool else None)
            elif tool == "flake8": m.plant(f"F821 undefined name '{n}'", f"{path}:{line}")
            else: m.plant(f"E0602: Undefined variable '{n}'", f"{path}:{line}")
    typed(m, c, plant, some)
    if tool.startswith("pylint"): m.plant("Your code has been rated")
    if tool == "ruff": m.plant("Found ")
@several([("bandit", "bandit -r shop")], sizes=("medium",))
def bandit(m, c):
    py_src(m, few)
    for w in m.pick(4):
        m.add(f"shop/{w}/run_{w}.py", f"import subprocess\n\n\ndef go(c):\n    subprocess.call(c, shell=True)\n")
        m.plant("subprocess call with shell=True identified, security issue.", f"shop/{w}/run_{w}.py:5")
@several([("yamllint", "yamllint .")], sizes=("small", "medium"))
def yamllint(m, c):
    for i, w in enumerate(m.pick(m.n(3, 9, 9))):
        body = "---\n" + "".join(f"{m.word()}_{j}:\n  a: {m.num()}\n  b: x\n" for j in range(12))
        if i % 3 == 0:
            body += "same: 1\nsame: 2\n"
            m.plant("duplication of key \"same\" in mapping")
        m.add(f"ci/{w}_{i}.yml", body)
@several([("pytest.line", "pytest --tb=line")])
def pytest_line(m, c):
    py_tests(m)
    for p in m.planted: p.pop("place")
