"""Further runs: Gradle's tests, Terraform, kubectl, Robot Framework, behave, SQLFluff, black, codespell, pytest with what tests print."""
from base import *

JUNIT = "files('/usr/share/java/junit4.jar', '/usr/share/java/hamcrest-core.jar', '/usr/share/java/hamcrest.jar')"
LOG = {"gradle.full": "test { testLogging { events 'passed', 'failed'; exceptionFormat 'full' } }\n"}
@several([("gradle.test", "./gradlew test", "gradle --offline --console=plain test"), ("gradle.full", "./gradlew test", "gradle --offline --console=plain test")], sizes=("small", "medium"))
def gradle_test(m, c):
    m.add("settings.gradle", "rootProject.name = 'shop'\n")
    m.add("build.gradle", f"apply plugin: 'java'\ndependencies {{ testImplementation {JUNIT} }}\n" + LOG.get(c["name"], ""))
    for i, w in enumerate(m.pick(m.n(4, 14, 20))):
        k = w.title() + f"{i}Test"; L = ["package shop;", "import static org.junit.Assert.*;", "import org.junit.Test;", f"public class {k} {{"]
        for t in range(m.n(4, 12, 12)):
            name = f"keeps{m.word().title()}{t}"; L.append(f"  @Test public void {name}() {{")
            if t == 2 and i % 3 == 0:
                a = m.num(); L.append(f"    assertEquals({a}, {a} + 1);"); full = c["name"] == "gradle.full"
                m.plant(f"expected:<{a}> but was:<{a+1}>" if full else "java.lang.AssertionError", f"{k}.java:{len(L)}", f"{k} > {name}")
            else: L.append("    assertEquals(2, 1 + 1);")
            L.append("  }")
        m.add(f"src/test/java/shop/{k}.java", "\n".join(L + ["}"]) + "\n")

@several([("terraform.validate", "terraform validate -no-color", "terraform validate -no-color"), ("terraform.color", "terraform validate", "terraform validate")], sizes=("small", "medium"))
def terraform_validate(m, c):
    L = []
    for i in range(m.n(8, 40, 80)): L += [f'variable "{m.word()}_{i}" {{', "  type = string", "}", ""]
    for i, w in enumerate(m.pick(m.n(2, 4, 6))):
        L += [f'output "{w}_out_{i}" {{', f"  value = var.missing_{w}_{i}", "}", ""]
        m.plant(f'An input variable with the name "missing_{w}_{i}" has not been declared', f"main.tf line {len(L)-2}")
    m.add("main.tf", "\n".join(L))

@several([("robot", "robot tests", "robot --consolewidth 100 tests"), ("robot.dotted", "robot --console dotted tests")], sizes=("small", "medium"))
def robot(m, c):
    for f, w in enumerate(m.pick(m.n(3, 10, 12))):
        L = ["*** Test Cases ***"]
        for t in range(m.n(5, 14, 14)):
            name = f"{w.title()} Keeps {m.word().title()} {t}"; L.append(name)
            if t == 1 and f % 2 == 0: a = m.num(); L.append(f"    Should Be Equal As Integers    {a}    {a+1}"); m.plant(f"{a} != {a+1}", None, name)
            else: L.append("    Should Be Equal    a    a")
        m.add(f"tests/{w}_{f}.robot", "\n".join(L) + "\n")

@several([("behave", "behave", "behave --no-color")], sizes=("small", "medium"))
def behave(m, c):
    m.add("features/steps/s.py", "from behave import then, given\n@given('a {x}')\ndef a(c, x): pass\n@then('it costs {n:d} and not {k:d}')\ndef b(c, n, k):\n    assert n == k, f'costs {n}, not {k}'\n")
    for f, w in enumerate(m.pick(m.n(3, 9, 12))):
        L = [f"Feature: {w}"]
        for t in range(m.n(4, 10, 12)):
            bad = t == 2 and f % 2 == 0; a = m.num(); name = f"{w} keeps {m.word()} {t}"
            L += [f"  Scenario: {name}", f"    Given a {w}", f"    Then it costs {a} and not {a + bad}"]
            if bad: m.plant(f"costs {a}, not {a+1}", f"features/{w}_{f}.feature:{len(L) - 2}", name)
        m.add(f"features/{w}_{f}.feature", "\n".join(L) + "\n")

@several([("sqlfluff", "sqlfluff lint sql", "sqlfluff lint sql --dialect ansi --nocolor --disable-progress-bar")], sizes=("small", "medium"))
def sqlfluff(m, c):
    for f, w in enumerate(m.pick(m.n(4, 16, 20))):
        body = f"SELECT {w}_id\nFROM {w}\nWHERE {w}_id = {m.num()}\n"
        if f % 4 == 1: body = f"SELECT {w}_id\nFROM {w} WHERE (\n"; m.plant("Couldn't find closing bracket for opening bracket.", f"sql/{w}_{f}.sql")
        elif f % 2: body = f"select {w}_id FROM {w}\n"
        m.add(f"sql/{w}_{f}.sql", body)

@several([("black", "black --check .", "black --check src"), ("black.diff", "black --check --diff .", "black --check --diff src")], sizes=("small", "medium"))
def black(m, c):
    for f, w in enumerate(m.pick(m.n(6, 30, 40))):
        p = f"src/{w}_{f}.py"; bad = f % 7 == 2
        m.add(p, f"def {w}(:\n    pass\n" if bad else (f"x  =  [ {m.num()},\n 2 ]\n" * 3 if f % 3 else f"x = {f}\n"))
        if bad: m.plant("Cannot parse", p)

@several([("codespell", "codespell docs")], sizes=("small", "medium"))
def codespell(m, c):
    for f, w in enumerate(m.pick(m.n(3, 8, 8))):
        L = [f"The {m.word()} holds {m.num()} parts." for _ in range(40)]; n = m.r.randrange(40); L[n] = f"The {w} recieves it."
        m.add(f"docs/{w}_{f}.md", "\n".join(L) + "\n"); m.plant("recieves ==> receives", f"docs/{w}_{f}.md:{n + 1}")

@several([("pytest.prints", "pytest -v -s"), ("pytest.captured", "pytest -q --tb=short", "pytest -q --tb=short -rA")], sizes=("small", "medium"))
def pytest_prints(m, c):
    """What tests print stands between the verdicts: lines that look like failures and are none."""
    for f, w in enumerate(m.pick(m.n(2, 8, 10))):
        L = ["import pytest, warnings", ""]
        for t in range(m.n(4, 14, 14)):
            name = f"test_{w}_{t}"; L += [f"@pytest.mark.parametrize('size', [1, {t + 2}])", f"def {name}(size):", f"    print('ERROR: retrying {m.word()} after timeout {m.num()}')", f"    print('[INFO] {w}/{t}.py:12: connection reset, 0 failed')"]
            if t == 1 and f % 2 == 0:
                a = m.num(); L.append(f"    assert size + {a} == {a} - 5, 'wrong {w} {a}'"); m.plant(f"wrong {w} {a}", f"test_{w}_{f}.py:{len(L)}", f"{name}[1]")
            else: L += ["    warnings.warn('old', DeprecationWarning)"] * (t % 3 == 0) + ["    assert size"]
        m.add(f"tests/test_{w}_{f}.py", "\n".join(L) + "\n")

@several([("golangci", "golangci-lint run")], real=False, sizes=("small", "medium"))
def golangci(m, c):
    L = []
    for i, w in enumerate(m.pick(m.n(6, 24, 30))):
        v = f"{w}{m.num()}"
        if i % 4 == 0:
            L += [f"internal/{w}/{w}.go:{i+21}:9: undefined: {v} (typecheck)", f"\treturn {v}", "\t       ^"]; m.plant(f"undefined: {v}", f"internal/{w}/{w}.go:{i+21}")
        else: L += [f"internal/{w}/{w}.go:{i+5}:{i+2}: Error return value of `{w}.Close` is not checked (errcheck)", f"\tdefer {w}.Close()", "\t" + " " * (6 + len(w)) + "^"]
    return "\n".join(L + [f"{len(L) // 3} issues:", f"* errcheck: {len(L) // 3 - m.planted.__len__()}", f"* typecheck: {len(m.planted)}"]) + "\n"

@several([("kubectl.yaml", "kubectl apply -f k8s/", "kubectl apply --validate=false -f k8s/")], sizes=("small", "medium"))
def kubectl_yaml(m, c):
    for i, w in enumerate(m.pick(m.n(6, 20, 20))):
        bad = i % 5 == 1; p = f"k8s/{i:02}-{w}.yaml"
        m.add(p, f"apiVersion: v1\nkind: Service\nmetadata:\n  name: {w}\nspec:\n{'  ports: [' if bad else '  ports: []'}\n")
        if bad: m.plant("error converting YAML to JSON: yaml: line", p)
