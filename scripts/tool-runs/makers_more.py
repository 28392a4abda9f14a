from base import *
def java_src(m):
    out = []; files = m.n(2, 8, 20)
    for f, w in enumerate(m.pick(files)):
        k = f"{w.title()}{f}"; L = ["package shop;", "", f"public class {k} {{"]
        for i in range(m.n(4, 8, 10)):
            L.append(f"    public int f{i}(int x, String y) {{")
            if i == 2 and f % 2 == 0:
                kind = m.r.choice(["sym", "type"]); v = f"missing{m.word().title()}{m.num()}"
                if kind == "sym": L.append(f"        return {v};"); out.append((f"src/main/java/shop/{k}.java", len(L), "cannot find symbol", v))
                else: L.append("        return y;"); out.append((f"src/main/java/shop/{k}.java", len(L), "incompatible types: String cannot be converted to int", None))
            else: L.append("        return x;")
            L += ["    }"]
        L.append("}"); m.add(f"src/main/java/shop/{k}.java", "\n".join(L) + "\n")
    return out
@several([("javac", "javac -d out $(find src -name '*.java')", "javac -d out $(find src -name '*.java' | sort)")])
def javac(m, c):
    for p, l, msg, v in java_src(m): m.plant(msg, f"{p}:{l}"); v and m.plant(f"variable {v}")
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId><artifactId>shop</artifactId><version>1.0</version>
<properties><maven.compiler.source>17</maven.compiler.source><maven.compiler.target>17</maven.compiler.target><project.build.sourceEncoding>UTF-8</project.build.sourceEncoding></properties>
<dependencies><dependency><groupId>org.junit.jupiter</groupId><artifactId>junit-jupiter</artifactId><version>5.10.2</version><scope>test</scope></dependency></dependencies>
<build><plugins><plugin><artifactId>maven-surefire-plugin</artifactId><version>3.2.5</version></plugin></plugins></build></project>"""
def junit(m):
    for f, w in enumerate(m.pick(m.n(2, 8, 20))):
        k = f"{w.title()}{f}Test"; L = ["package shop;", "import org.junit.jupiter.api.Test;", "import static org.junit.jupiter.api.Assertions.*;", f"class {k} {{"]
        for i in range(m.n(4, 8, 10)):
            nm = f"keeps{m.word().title()}{i}"; L.append(f"    @Test void {nm}() {{")
            a = m.num()
            if i == 2 and f % 3 == 0: L.append(f"        assertEquals({a+1}, {a});"); m.plant(f"expected: <{a+1}> but was: <{a}>", f"{k}.java:{len(L)}", nm)
            elif i == 3 and f % 4 == 1: L.append(f'        throw new IllegalStateException("{w} has none of {a}");'); m.plant(f"{w} has none of {a}", f"{k}.java:{len(L)}", nm)
            else: L.append(f'        System.out.println("ready {i}");')
            L.append("    }")
        L.append("}"); m.add(f"src/test/java/shop/{k}.java", "\n".join(L) + "\n")
M2 = " -Dmaven.repo.local=@TOOLS@/m2"
@several([("maven.test", "mvn test", "mvn -B -ntp test" + M2), ("maven.color", "mvn test", "mvn -B -ntp -Dstyle.color=always test" + M2)], sizes=("small", "medium"))
def maven_test(m, c): m.add("pom.xml", POM); junit(m)
@several([("maven.compile", "mvn -q compile", "mvn -B -ntp -q compile" + M2), ("maven.full", "mvn compile", "mvn -B compile" + M2)], sizes=("small", "medium"))
def maven_compile(m, c):
    m.add("pom.xml", POM)
    for p, l, msg, v in java_src(m): m.plant(msg, f"{p}:[{l}")
@several([("git.push", "git push origin main", "git init -q --bare r.git; git clone -q r.git a 2>/dev/null; git clone -q r.git b 2>/dev/null; cd a; git commit -q --allow-empty -m x; git push -q origin HEAD:main; cd ../b; git commit -q --allow-empty -m y; git push origin HEAD:main"),
    ], sizes=("small",))
def git_push(m, c): m.plant("! [rejected]"); m.plant("error: failed to push some refs")
@several([("git.merge", "git merge topic", "git init -q .; git checkout -q -b main; for i in $(seq 40); do echo $i > f$i.txt; done; git add .; git commit -q -m a; git checkout -q -b topic; for i in $(seq 1 4 40); do echo t > f$i.txt; done; git commit -q -am b; git checkout -q main; for i in $(seq 1 8 40); do echo m > f$i.txt; done; git commit -q -am c; git merge topic")], sizes=("small",))
def git_merge(m, c):
    for i in range(1, 41, 8): m.plant(f"Merge conflict in f{i}.txt")
    m.plant("Automatic merge failed")
@several([("pip.nomatch", "pip install -r requirements.txt", "pip install --no-cache-dir --target t -r requirements.txt")], sizes=("small",))
def pip_no(m, c):
    m.add("requirements.txt", "idna==3.4\ncertifi\npytest==99.0.0\n"); m.plant("No matching distribution found for pytest==99.0.0")
@several([("pip.build", "pip install .", "pip install --no-build-isolation --no-deps --target t .")], sizes=("small",))
def pip_build(m, c):
    m.add("setup.py", "import sys\nfor i in range(60): print('copying shop/m%d.py -> build/lib/shop' % i)\nraise RuntimeError('libzorblax headers were not found')\n"); m.plant("RuntimeError: libzorblax headers were not found", 'line 3')
@several([("cargo-install", "cargo install ripgrepx", "cargo install --path .")], sizes=("small",))
def cargo_install(m, c):
    m.add("Cargo.toml", '[package]\nname = "shop"\nversion = "0.1.0"\nedition = "2021"\n[[bin]]\nname="shop"\npath="src/main.rs"\n'); m.add("src/main.rs", "fn main() {\n    missing_thing();\n}\n")
    m.plant("cannot find function `missing_thing` in this scope", "src/main.rs:2"); m.plant("could not compile `shop`")
@several([("node.crash", "node server.js", "node s.js")], sizes=("small", "medium"))
def node_crash(m, c):
    n = m.n(10, 300, 300); a = m.num()
    m.add("s.js", "function deep(x) {\n  return x.items.length\n}\n" + f"for (let i = 0; i < {n}; i++) console.log(`GET /orders/${{i}} 200 ${{i % 7}}ms`)\nfunction serve() {{ return deep({{}}) }}\nserve()\n")
    m.plant("TypeError: Cannot read properties of undefined (reading 'length')", "s.js:2")
@several([("python.crash", "python run.py")], sizes=("small", "medium"))
def py_crash(m, c):
    n = m.n(10, 400, 400)
    m.add("run.py", f"import time\ndef load(t, k):\n    return t[k]\nfor i in range({n}):\n    print(f'processed batch {{i}} of {n}: 0 errors', flush=True)\nload({{}}, 'orders_{m.num()}')\n"); m.plant("KeyError: 'orders_", 'run.py", line 3')
@several([("rubocop", "rubocop", "rubocop --cache false")], sizes=("small", "medium"))
def rubocop(m, c):
    for f, w in enumerate(m.pick(m.n(2, 6, 6))):
        L = ["# frozen_string_literal: true", "", f"# {w}", f"class {w.title()}"]
        for i in range(4): L += [f"  def f{i}(a)", "    a", "  end", ""]
        L[-1:] = ["end"]
        if f % 2 == 0: L.insert(5, f"    x = {m.num()}"); m.plant("Lint/UselessAssignment: Useless assignment to variable - x.", f"lib/{w}_{f}.rb:6")
        m.add(f"lib/{w}_{f}.rb", "\n".join(L) + "\n")
@several([("stylelint", "npx stylelint 'css/*.css'", "stylelint 'css/*.css'")], sizes=("small", "medium"))
def stylelint(m, c):
    m.add("stylelint.config.mjs", "export default {rules: {'color-no-invalid-hex': true, 'block-no-empty': true, 'property-no-unknown': true}}\n")
    for f, w in enumerate(m.pick(m.n(3, 8, 8))):
        m.add(f"css/{w}_{f}.css", "a {\n  color: red;\n}\n" * 5 + (f"b {{\n  color: #{m.num()}zz;\n  colr{f}: red;\n}}\n" if f % 2 == 0 else ""))
        if f % 2 == 0: m.plant(f'colr{f}')
@several([("prettier", "npx prettier --check .", "prettier --check src")], sizes=("small",))
def prettier(m, c):
    for f, w in enumerate(m.pick(12)):
        m.add(f"src/{w}_{f}.js", f"const a = {f};\n" if f % 3 else ("let   a=1\n" if f else "let = = 3;\n"))
        if f % 3 == 0: m.plant(f"src/{w}_{f}.js")
@several([("gradle", "./gradlew test", "gradle --offline compileJava")], sizes=("small",))
def gradle(m, c):
    m.add("build.gradle", "apply plugin: 'java'\n")
    for p, l, msg, v in java_src(m): m.plant(msg, f"{p}:{l}")
@several([("docker.daemon", "docker build -t shop .", "docker build .")], sizes=("small",))
def dockerd(m, c): m.add("Dockerfile", "FROM debian\n"); m.plant("Cannot connect to the Docker daemon" )
@several([("ansible", "ansible-playbook site.yml", "ansible-playbook -i localhost, -c local site.yml")], sizes=("small", "medium"))
def ansible(m, c):
    n = m.n(5, 40, 40); t = "".join(f"  - name: check {m.word()} {i}\n    debug: msg=ok\n" for i in range(n))
    m.add("site.yml", f"- hosts: all\n  gather_facts: false\n  tasks:\n{t}  - name: break {m.word()}\n    command: /bin/false-{m.num()}\n"); m.plant("No such file or directory"); m.plant("failed=1")
