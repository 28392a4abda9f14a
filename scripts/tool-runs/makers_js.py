from base import *

def js_tests(m, head, it, eq, ext, call, folder="src"):
    files = m.n(3, 10, 24); per = m.n(5, 14, 20); k = m.n(2, 4, 7)
    fails = sorted(m.chosen(files * per, k)); n = 0
    for f, w in enumerate(m.pick(files)):
        path = f"{folder}/{w}/{w}-{f}.test.{ext}"
        lines = head.split("\n") + [call(f"{w} service")]
        for t in range(per):
            name = f"keeps {m.word()} of {w} number {n}"
            if n in fails:
                a, b = m.num(), m.num(); kind = ["eq", "throw", "obj"][fails.index(n) % 3]
                lines.append(it(name))
                if kind == "eq": lines.append("    " + eq(a, b)); msg = (f"{a}", f"{b}")
                elif kind == "throw": lines.append(f"    throw new Error('{w} has no {m.word()} after {a} tries')"); msg = (lines[-1].split("'")[1],)
                else: lines.append("    " + eq(f"{{id: {a}, name: '{w}'}}", f"{{id: {b}, name: '{w}'}}", True)); msg = (f"{a}", f"{b}")
                lines.append("  })")
                for x in msg[:1]: m.plant(x, f"{w}-{f}.test.{ext}:{len(lines)-1}", name)
            else:
                lines += [it(name), "    " + eq(1, 1), "  })"]
            n += 1
        lines.append("})")
        m.add(path, "\n".join(lines) + "\n")

jest_eq = lambda a, b, deep=False: f"expect({a}).{'toEqual' if deep else 'toBe'}({b})"
node_eq = lambda a, b, deep=False: f"assert.{'deepStrictEqual' if deep else 'strictEqual'}({a}, {b})"
it = lambda n: f"  it('{n}', () => {{"
ds = lambda n: f"describe('{n}', () => {{"
@several([("jest", "npx jest", "jest --rootDir ."), ("jest.verbose", "npm test -- --verbose", "jest --rootDir . --verbose"), ("jest.color", "npx jest --colors", "jest --rootDir . --colors --verbose")])
def jest(m, c):
    js_tests(m, "", it, jest_eq, "js", ds); m.add("package.json", '{"name":"shop"}')
@several([("vitest", "npx vitest run", "@TOOLS@/node_modules/.bin/vitest run --root ."), ("vitest.verbose", "npx vitest run --reporter=verbose", "@TOOLS@/node_modules/.bin/vitest run --reporter=verbose --root .")])
def vitest(m, c):
    js_tests(m, "import {describe, it, expect} from '@TOOLS@/node_modules/vitest/dist/index.js'", it, jest_eq, "js", ds); m.add("package.json", '{"name":"shop","type":"module"}')
@several([("mocha", "npx mocha --recursive", "mocha --recursive src"), ("mocha.dot", "npx mocha -R dot --recursive src", "mocha -R dot --recursive src"), ("mocha.color", "npx mocha --recursive", "mocha --color --recursive src")])
def mocha(m, c): js_tests(m, "const assert = require('assert')", it, node_eq, "js", ds)
@several([("node-test", "node --test"), ("node-test.tap", "node --test --test-reporter=tap"), ("node-test.spec", "node --test --test-reporter=spec")])
def node_test(m, c): js_tests(m, "const {describe, it} = require('node:test'); const assert = require('assert')", it, node_eq, "js", ds)
@several([("playwright", "npx playwright test", "@TOOLS@/node_modules/.bin/playwright test --reporter=list"), ("playwright.line", "npx playwright test --reporter=line", "@TOOLS@/node_modules/.bin/playwright test --reporter=line")], sizes=("small", "medium"))
def playwright(m, c):
    js_tests(m, "const {test, expect} = require('@TOOLS@/node_modules/@playwright/test')", lambda n: f"  test('{n}', async () => {{", jest_eq, "js", lambda n: f"test.describe('{n}', () => {{")
    m.add("playwright.config.js", "module.exports = {testDir: 'src', workers: 2}")
@several([("ava", "npx ava", "@TOOLS@/node_modules/.bin/ava 'src/**/*.test.js'")], sizes=("small", "medium"))
def ava(m, c):
    files = m.n(3, 8, 10)
    for f, w in enumerate(m.pick(files)):
        lines = ["const test = require('@TOOLS@/node_modules/ava')"]
        for j in range(8):
            nm = f"keeps {m.word()} of {w} {j}"
            if j == 3 and f % 3 == 0:
                a = m.num(); lines += [f"test('{nm}', t => {{", f"  t.is({a}, {a+1});", "});"]; m.plant(f"- {a}", f"{w}-{f}.test.js:{len(lines)-1}", nm)
            else: lines += [f"test('{nm}', t => {{", "  t.pass();", "});"]
        m.add(f"src/{w}-{f}.test.js", "\n".join(lines) + "\n")
    m.add("package.json", '{"name":"shop"}')
@several([("tape", "node test/all.js | cat", "node test/all.js")], sizes=("small", "medium"))
def tape(m, c):
    total = m.n(20, 120, 200); bad = m.chosen(total, m.n(2, 4, 4)); lines = ["const test = require('tape')"]
    for i in range(total):
        nm = f"keeps {m.word()} {i}"
        if i in bad:
            a = m.num(); lines += [f"test('{nm}', t => {{", f"  t.equal({a}, {a+1}, '{m.word()} equals {a}');", "  t.end();", "});"]; m.plant(f"expected: {a+1}", f"test/all.js:{len(lines)-2}", lines[-3].split("'")[1])
        else: lines += [f"test('{nm}', t => {{", "  t.ok(true);", "  t.end();", "});"]
    m.add("test/all.js", "\n".join(lines) + "\n")
@several([("jasmine", "npx jasmine", "@TOOLS@/node_modules/.bin/jasmine 'src/**/*.js'")], sizes=("small", "medium"))
def jasmine(m, c): js_tests(m, "", it, jest_eq, "js", ds)

def ts_src(m, lint=False):
    files = m.n(3, 12, 30); out = []
    for f, w in enumerate(m.pick(files)):
        path = f"src/{w}/{w}{f}.ts"; lines = [f"export interface {w.title()} {{ id: number; name: string }}", ""]
        for i in range(m.n(5, 10, 14)):
            fn = f"{m.word()}{i}"
            lines += [f"export function {fn}(x: number, y: string): number {{", f"  const z = x + {m.num()};"]
            if i == 2 and f % 2 == 0:
                kind = m.r.choice(["ret", "name", "prop"])
                if kind == "ret": lines.append("  return y;"); msg = "TS2322: Type 'string' is not assignable to type 'number'."
                elif kind == "name": v = f"missing{m.word().title()}{m.num()}"; lines.append(f"  return {v};"); msg = f"TS2304: Cannot find name '{v}'."
                else: v = f"{m.word()}{m.num()}"; lines.append(f"  return x.{v};"); msg = f"TS2339: Property '{v}' does not exist on type 'number'."
                out.append((path, len(lines), msg))
            elif lint and i == 3 and f % 3 == 0:
                lines.append("  debugger; return z;"); out.append((path, len(lines), "debugger"))
            else: lines.append("  return z;")
            lines += ["}", ""]
        m.add(path, "\n".join(lines))
    m.add("tsconfig.json", '{"compilerOptions": {"strict": true, "noEmit": true, "target": "es2022", "module": "esnext", "types": []}, "include": ["src"]}')
    return out
@several([("tsc", "npx tsc --noEmit", "@TOOLS@/node_modules/.bin/tsc -p ."), ("tsc.pretty", "npm run typecheck", "@TOOLS@/node_modules/.bin/tsc -p . --pretty")])
def tsc(m, c):
    for path, line, msg in ts_src(m):
        if c["name"] == "tsc.pretty": m.plant(msg.split(": ", 1)[1], f"{path}:{line}")
        else: m.plant(msg, f"{path}({line}")
def js_lint(m):
    files = m.n(3, 10, 30); out = []
    for f, w in enumerate(m.pick(files)):
        path = f"src/{w}/{w}{f}.js"; lines = []
        for i in range(m.n(6, 12, 16)):
            fn = f"{m.word()}{i}{f}"
            lines += [f"export function {fn}(x) {{", f"  let z = x + {m.num()};"]
            if i == 2 and f % 2 == 0: v = f"missing{m.word().title()}{m.num()}"; lines.append(f"  {v}(z);"); out.append(("undef", path, len(lines), v))
            if i == 3 and f % 3 == 0: lines.append("  debugger;"); out.append(("debugger", path, len(lines), ""))
            if i == 4: v = f"unused{m.num()}"; lines.append(f"  const {v} = 1;")
            lines += ["  return z;", "}", ""]
        m.add(path, "\n".join(lines))
    m.add("package.json", '{"name": "shop", "type": "module"}')
    return out
@several([("eslint", "npx eslint .", "cp -r /dev/null x 2>/dev/null; eslint src"), ("eslint.color", "npm run lint", "eslint --color src")])
def eslint(m, c):
    m.add("eslint.config.js", "import js from '@TOOLS@/node_modules/@eslint/js/src/index.js'\nexport default [js.configs.recommended, {rules: {'prefer-const': 'warn'}}]\n")
    for kind, path, line, v in js_lint(m):
        m.plant(f"'{v}' is not defined" if kind == "undef" else "Unexpected 'debugger' statement", f"{line}:3")
@several([("biome", "npx @biomejs/biome lint src", "biome lint src"), ("oxlint", "npx oxlint", "oxlint src")], sizes=("small", "medium"))
def biome(m, c):
    for kind, path, line, v in js_lint(m):
        if kind == "debugger": m.plant("This is an unexpected use of the debugger statement" if c["name"] == "biome" else "`debugger` statement is not allowed", f"{path}:{line}")
@several([("npm.eresolve", "npm install", "npm install --offline")], sizes=("small",))
def npm_missing(m, c):
    m.add("package.json", '{"name": "shop", "dependencies": {"left-pad-shop-x": "^9.9.9"}}'); m.plant("npm error code ENOTCACHED")
@several([("npm.script", "npm run build", "npm run build")], sizes=("small", "medium"))
def npm_script(m, c):
    m.add("build.js", "".join(f"console.log('bundling {m.word()}/{m.word()}_{i}.js  {m.num()} kB');\n" for i in range(m.n(20, 200, 200))) + "require('./missing-module')\n")
    m.add("package.json", '{"name": "shop", "scripts": {"build": "node build.js"}}')
    m.plant("Error: Cannot find module './missing-module'", f"build.js:{m.files['build.js'].count(chr(10))}")
