from base import *

def c_src(m, ext="c", many=False):
    files = m.n(2, 6, 14); out = []; names = []
    for f, w in enumerate(m.pick(files)):
        path = f"src/{w}_{f}.{ext}"; names.append(path); lines = ["#include <stdio.h>", "#include <string.h>", "", f"struct {w}_s {{ int id; }};", ""]
        for i in range(m.n(5, 10, 14)):
            fn = f"{w}_{m.word()}_{i}"
            lines += [f"int {fn}(int x, const char *y) {{"]
            if i % 3 == 1: lines.append(f"  int unused_{i};")
            if i == 2 and f % 2 == 0:
                kind = m.r.choice(["undecl", "member", "semi"]); 
                if kind == "undecl": v = f"missing_{m.word()}_{m.num()}"; lines.append(f"  return {v} + x;"); out.append(("undecl", path, len(lines), v))
                elif kind == "member": v = f"{m.word()}{m.num()}"; lines += [f"  struct {w}_s s = {{x}};", f"  return s.{v};"]; out.append(("member", path, len(lines), v))
                else: lines += [f"  struct nothing_{i}_{f} q; return q.a;"]; out.append(("incomplete", path, len(lines), f"nothing_{i}_{f}"))
            else: lines.append("  return x;")
            lines += ["}", ""]
        m.add(path, "\n".join(lines))
    m.add("src/main.c" if ext == "c" else "src/main.cc", "int main(void) { return 0; }\n")
    return out, names
def c_msgs(m, tool, out):
    for kind, path, line, v in out:
        if tool == "gcc":
            msg = {"undecl": f"error: ‘{v}’ undeclared", "member": f"has no member named ‘{v}’", "incomplete": "error: storage size of ‘q’ isn’t known"}[kind]
        elif tool == "g++":
            msg = {"undecl": f"error: ‘{v}’ was not declared in this scope", "member": f"has no member named ‘{v}’", "incomplete": f"{v} q’ has incomplete type"}[kind]
        else:
            msg = {"undecl": f"use of undeclared identifier '{v}'", "member": f"no member named '{v}'", "incomplete": "variable has incomplete type 'struct" if tool == "clang" else "variable has incomplete type"}[kind]
        m.plant(msg, f"{path}:{line}")
MK = "SRC := $(wildcard src/*.{e})\nOBJ := $(SRC:.{e}=.o)\nall: app\napp: $(OBJ)\n\t{cc} -o $@ $^\n%.o: %.{e}\n\t{cc} -Wall -Wextra -O0 -c $< -o $@\n"
@several([("make.gcc", "make -j4 -k", "make -j2 -k"), ("make.first", "make")])
def make_gcc(m, c):
    out, names = c_src(m); m.add("Makefile", MK.format(e="c", cc="gcc")); 
    if c["name"] == "make.first": first = sorted({o[1] for o in out}); 
    c_msgs(m, "gcc", out); m.plant("Error 1")
@several([("gcc", "gcc -Wall -c src/*.c", "gcc -Wall -Wextra -c src/*.c"), ("gcc.color", "gcc -Wall -c src/*.c", "gcc -fdiagnostics-color=always -Wall -c src/*.c")])
def gcc(m, c): c_msgs(m, "gcc", c_src(m)[0])
@several([("g++", "g++ -Wall -Wextra -c src/*.cc")])
def gpp(m, c): c_msgs(m, "g++", c_src(m, "cc")[0])
@several([("clang", "clang -Wall -Wextra -c src/*.c"), ("clang.make", "make CC=clang -k", "make -k"), ("clang.color", "clang -Wall -fcolor-diagnostics -c src/*.c")])
def clang(m, c):
    out, names = c_src(m); m.add("Makefile", MK.format(e="c", cc="clang")); c_msgs(m, "clang", out); 
@several([("clang-tidy", "clang-tidy src/*.c --", "clang-tidy --checks='clang-diagnostic-*,clang-analyzer-*,bugprone-*,readability-*' src/*.c -- -Wall")], sizes=("small", "medium"))
def clang_tidy(m, c): c_msgs(m, "tidy", c_src(m)[0])
@several([("cppcheck", "cppcheck --enable=all src")], sizes=("small", "medium"))
def cppcheck(m, c):
    for f, w in enumerate(m.pick(m.n(4, 12, 12))):
        p = f"src/{w}_{f}.c"
        if f % 3 == 0: m.add(p, f"#include <stdlib.h>\nint {w}(void) {{\n  int a[4];\n  a[9] = 1;\n  return a[0];\n}}\n"); m.plant("Array 'a[4]' accessed at index 9, which is out of bounds.", f"{p}:4")
        else: m.add(p, f"int {w}(int x) {{\n  int b;\n  return x;\n}}\n")
@several([("ninja", "ninja -C build", "cd build && ninja -k 0"), ("cmake.build", "cmake --build build", "cmake -S . -B b2 -G Ninja >/dev/null; cmake --build b2 -- -k 0")])
def ninja(m, c):
    out, names = c_src(m); names = names + ["src/main.c"]
    m.add("build/build.ninja", "rule cc\n  command = gcc -Wall -Wextra -c $in -o $out\n  description = CC $out\nrule link\n  command = gcc $in -o $out\n" + "".join(f"build {n.replace('src/', '')[:-2]}.o: cc ../{n}\n" for n in names) + "build app: link " + " ".join(n.replace('src/', '')[:-2] + ".o" for n in names) + "\ndefault app\n")
    m.add("CMakeLists.txt", "cmake_minimum_required(VERSION 3.16)\nproject(shop C)\nset(CMAKE_C_FLAGS \"-Wall\")\nadd_executable(app " + " ".join(names) + ")\n")
    c_msgs(m, "gcc", out)
@several([("cmake.configure", "cmake -S . -B build")], sizes=("small",))
def cmake_conf(m, c):
    m.add("CMakeLists.txt", "cmake_minimum_required(VERSION 3.16)\nproject(shop C)\nfind_package(Zorblax REQUIRED)\n")
    m.plant('By not providing "FindZorblax.cmake"', "CMakeLists.txt:3")
@several([("ctest", "ctest --test-dir build --output-on-failure", "cmake -S . -B build >/dev/null && ctest --test-dir build --output-on-failure"), ("ctest.V", "ctest -V", "cmake -S . -B build >/dev/null && ctest --test-dir build -V")])
def ctest(m, c):
    total = m.n(15, 80, 200); bad = m.chosen(total, m.n(2, 3, 6)); s = "cmake_minimum_required(VERSION 3.16)\nproject(shop NONE)\nenable_testing()\n"
    for i in range(total):
        nm = f"{m.word()}_{m.word()}_{i}"
        if i in bad:
            a = m.num(); m.add(f"t/{nm}.sh", f"echo starting {nm}\nfor i in 1 2 3; do echo step $i; done\necho 'src/{nm}.c:{a}: check failed: got {a}, want {a+1}'\nexit 1\n"); m.plant(f"check failed: got {a}, want {a+1}", f"src/{nm}.c:{a}", nm)
        else: m.add(f"t/{nm}.sh", f"echo starting {nm}\necho fine\n")
        s += f"add_test(NAME {nm} COMMAND sh ${{CMAKE_SOURCE_DIR}}/t/{nm}.sh)\n"
    m.add("CMakeLists.txt", s)
@several([("gtest", "./build/tests", "g++ -w -O0 t.cc -o t -lgtest -lgtest_main -lpthread && ./t"), ("gtest.color", "./build/tests", "g++ -w -O0 t.cc -o t -lgtest -lgtest_main -lpthread && ./t --gtest_color=yes")])
def gtest(m, c):
    total = m.n(15, 80, 300); bad = m.chosen(total, m.n(2, 4, 7)); L = ["#include <gtest/gtest.h>"]
    for i in range(total):
        s, t = m.word().title(), f"keeps_{m.word()}_{i}"
        L.append(f"TEST({s}{i%9}, {t}) {{")
        if i in bad: a = m.num(); L.append(f"  int got = {a}; EXPECT_EQ(got, {a+1});"); m.plant(f"Which is: {a}", f"t.cc:{len(L)}", f"{s}{i%9}.{t}")
        else: L.append("  EXPECT_TRUE(true);")
        L.append("}")
    m.add("t.cc", "\n".join(L) + "\n")
@several([("bats", "bats test"), ("bats.tap", "bats --tap test")])
def bats(m, c):
    total = m.n(12, 60, 120); bad = m.chosen(total, m.n(2, 3, 5)); L = ["#!/usr/bin/env bats"]
    for i in range(total):
        nm = f"keeps {m.word()} and {m.word()} {i}"
        L.append(f'@test "{nm}" {{')
        if i in bad: a = m.num(); L += [f"  run echo got {a}", f'  [ "$output" = "got {a+1}" ]']; m.plant(f'[ "$output" = "got {a+1}" ]', f"line {len(L)}", nm)
        else: L.append("  true")
        L.append("}")
    m.add("test/shop.bats", "\n".join(L) + "\n")
@several([("prove", "prove -v t"), ("prove.q", "prove t")])
def prove(m, c):
    for f, w in enumerate(m.pick(m.n(3, 8, 12))):
        total = m.n(6, 15, 20); L = ["use strict; use Test::More;"]
        for i in range(total):
            nm = f"keeps {m.word()} {i}"
            if i == 3 and f % 2 == 0: a = m.num(); L.append(f"is({a}, {a+1}, '{nm} of {w}');"); m.plant(f"got: '{a}'", f"t/{w}_{f}.t line {len(L)}", f"{nm} of {w}")
            else: L.append(f"ok(1, '{nm}');")
        L.append("done_testing;"); m.add(f"t/{w}_{f}.t", "\n".join(L) + "\n")
@several([("rspec", "bundle exec rspec", "rspec"), ("rspec.doc", "bundle exec rspec -fd", "rspec -fd"), ("rspec.color", "rspec", "rspec --force-color -fd")])
def rspec(m, c):
    for f, w in enumerate(m.pick(m.n(3, 9, 20))):
        L = [f"RSpec.describe '{w}' do"]
        for i in range(m.n(5, 12, 14)):
            nm = f"keeps {m.word()} {i}{f}"
            L.append(f"  it '{nm}' do")
            if i == 2 and f % 3 == 0: a = m.num(); L.append(f"    expect({a}).to eq({a+1})"); m.plant(f"expected: {a+1}", f"spec/{w}_{f}_spec.rb:{len(L)}", f"{w} {nm}")
            elif i == 3 and f % 4 == 1: a = m.num(); L.append(f"    raise ArgumentError, '{w} has none of {a}'"); m.plant(f"{w} has none of {a}", f"spec/{w}_{f}_spec.rb:{len(L)}", f"{w} {nm}")
            else: L.append("    expect(1).to eq(1)")
            L.append("  end")
        L.append("end"); m.add(f"spec/{w}_{f}_spec.rb", "\n".join(L) + "\n")
@several([("minitest", "rake test", "ruby t.rb"), ("minitest.v", "ruby -Itest test/all.rb -v", "ruby t.rb -v")])
def minitest(m, c):
    total = m.n(12, 60, 200); bad = m.chosen(total, m.n(2, 3, 6)); L = ["require 'minitest/autorun'", "class ShopTest < Minitest::Test"]
    for i in range(total):
        nm = f"test_{m.word()}_{i}"
        L.append(f"  def {nm}")
        if i in bad: a = m.num(); L.append(f"    assert_equal {a+1}, {a}"); m.plant(f"Actual: {a}", f"t.rb:{len(L)}", nm)
        else: L.append("    assert true")
        L.append("  end")
    m.add("t.rb", "\n".join(L + ["end"]) + "\n")
@several([("phpunit", "vendor/bin/phpunit", "phpunit tests"), ("phpunit.testdox", "phpunit --testdox", "phpunit --testdox tests"), ("phpunit.debug", "phpunit --debug", "phpunit --debug tests")])
def phpunit(m, c):
    for f, w in enumerate(m.pick(m.n(3, 9, 20))):
        k = f"{w.title()}{f}Test"; L = ["<?php", f"class {k} extends PHPUnit\\Framework\\TestCase {{"]
        for i in range(m.n(5, 12, 14)):
            nm = f"testKeeps{m.word().title()}{i}"
            L.append(f"  public function {nm}() {{")
            if i == 2 and f % 3 == 0: a = m.num(); L.append(f"    $this->assertSame({a+1}, {a});"); m.plant(f"{a} is identical to {a+1}", f"tests/{k}.php:{len(L)}", f"{k}::{nm}" if c["name"] != "phpunit.testdox" else None)
            else: L.append("    $this->assertTrue(true);")
            L.append("  }")
        L.append("}"); m.add(f"tests/{k}.php", "\n".join(L) + "\n")
@several([("shellcheck", "shellcheck bin/*.sh"), ("shellcheck.gcc", "shellcheck -f gcc bin/*.sh")], sizes=("small", "medium"))
def shellcheck(m, c):
    for f, w in enumerate(m.pick(m.n(3, 9, 9))):
        L = ["#!/bin/bash", f"{w}=$1"]
        for i in range(8): L.append(f"echo ${w}" if i % 3 == 0 else f'echo "${w}"')
        if f % 2 == 0: L += [f"if [ ${w} = 1 ]", "then", "  echo a", "fi", f"[ 1 -gt 2 -a x = ]"]
        m.add(f"bin/{w}_{f}.sh", "\n".join(L) + "\n")
        if f % 2 == 0: m.plant("SC1", f"bin/{w}_{f}.sh" + (":" if "gcc" in c["name"] else " line ") + str(len(L)))
@several([("hadolint", "hadolint Dockerfile")], sizes=("small",))
def hadolint(m, c):
    m.add("Dockerfile", "FROM debian\nRUN apt-get install python3\nRUN cd /x && make\nADD a /b\nRUN sudo make\n" + "".join(f"RUN pip install {w}\n" for w in m.pick(12)))
    m.plant("DL3004", "Dockerfile:5"); m.plant("DL3006", "Dockerfile:1")

def go_src(m, c, tests=True):
    m.add("go.mod", "module example.org/shop\n\ngo 1.26\n")
    pk = m.n(2, 6, 14); bad = m.chosen(pk, m.n(1, 3, 5))
    for f, w in enumerate(m.pick(pk)):
        m.add(f"{w}/{w}.go", f"package {w}\n\nfunc Total(a, b int) int {{\n\treturn a + b\n}}\n")
        L = [f"package {w}", "", 'import "testing"', ""]
        for i in range(m.n(5, 15, 25)):
            nm = f"Test{m.word().title()}{i}"
            L.append(f"func {nm}(t *testing.T) {{")
            if f in bad and i == 2:
                a = m.num(); kind = m.r.choice(["plain", "sub", "panic"]) if m.size != "small" else "plain"
                if kind == "sub": L += [f'\tt.Run("case {a}", func(t *testing.T) {{', f'\t\tt.Errorf("Total: got %d, want %d", {a}, {a+1})', "\t})"]; m.plant(f"Total: got {a}, want {a+1}", f"{w}_test.go:{len(L)-1}", f"{nm}/case_{a}")
                elif kind == "panic": L += ["\tvar m map[string]int", f'\tm["{w}"] = Total({a}, 1)']; m.plant("panic: assignment to entry in nil map", f"{w}_test.go:{len(L)}", nm)
                else: L += [f"\tif got := Total({a}, 1); got != {a} {{", f'\t\tt.Fatalf("Total: got %d, want %d", got, {a})', "\t}"]; m.plant(f"Total: got {a+1}, want {a}", f"{w}_test.go:{len(L)-1}", nm)
            else: L.append('\tt.Log("checked")')
            L += ["}", ""]
        m.add(f"{w}/{w}_test.go", "\n".join(L))
@several([("go-test", "go test ./..."), ("go-test.v", "go test -v ./..."), ("go-test.json", "go test -json ./...")], sizes=("small", "medium"))
def go_test(m, c): go_src(m, c)
@several([("go-build", "go build ./..."), ("go-vet", "go vet ./...")], sizes=("small", "medium"))
def go_build(m, c):
    m.add("go.mod", "module example.org/shop\n\ngo 1.26\n")
    for f, w in enumerate(m.pick(m.n(2, 8, 8))):
        L = [f"package {w}", "", 'import "fmt"', ""]
        for i in range(6): L += [f"func F{i}(x int) int {{", f'\tfmt.Println("{m.word()}", x)', "\treturn x", "}", ""]
        if c["name"] == "go-vet": L += ["func Bad(x int) {", f'\tfmt.Printf("%s of {m.num()}\\n", x)', "}"]; m.plant("has arg x of wrong type int", f"{w}/{w}.go:{len(L)-1}")
        elif f % 2 == 0: v = f"missing{m.word().title()}{m.num()}"; L += ["func Bad(x int) int {", f"\treturn {v}", "}"]; m.plant(f"undefined: {v}", f"{w}/{w}.go:{len(L)-1}")
        m.add(f"{w}/{w}.go", "\n".join(L) + "\n")
def cargo(m, tests):
    m.add("Cargo.toml", '[package]\nname = "shop"\nversion = "0.1.0"\nedition = "2021"\n')
    mods = m.n(2, 6, 14); src = ""; bad = m.chosen(mods, m.n(1, 3, 5))
    for f, w in enumerate(m.pick(mods)):
        src += f"pub mod {w}_{f};\n"; L = ["pub struct Item {", "    pub id: u32,", "}", "", "pub fn total(a: u32, b: u32) -> u32 {", "    a + b", "}", ""]
        if not tests:
            for i in range(5):
                L += [f"pub fn f{i}(x: u32) -> u32 {{", f"    let unused_{i} = 1;" if i % 2 == 0 else f"    let y = x + {i};"]
                if f in bad and i == 2:
                    v = f"missing_{m.word()}_{m.num()}"; kind = m.r.choice(["name", "type", "method"])
                    if kind == "name": L.append(f"    {v}"); m.plant(f"cannot find value `{v}` in this scope", f"src/{w}_{f}.rs:{len(L)}")
                    elif kind == "type": L.append(f'    "{v}"'); m.plant("mismatched types", f"src/{w}_{f}.rs:{len(L)}")
                    else: L.append(f"    Item {{ id: x }}.{v}()"); m.plant(f"no method named `{v}` found for struct", f"src/{w}_{f}.rs:{len(L)}")
                else: L.append("    x")
                L += ["}", ""]
        else:
            L += ["#[cfg(test)]", "mod tests {", "    use super::*;", ""]
            for i in range(m.n(5, 15, 25)):
                nm = f"keeps_{m.word()}_{i}"
                L += ["    #[test]", f"    fn {nm}() {{", f'        println!("ready {i}");']
                if f in bad and i == 2:
                    a = m.num(); kind = m.r.choice(["eq", "panic", "unwrap"])
                    if kind == "eq": L.append(f"        assert_eq!(total({a}, 1), {a});"); msg = f"left: {a+1}"
                    elif kind == "panic": L.append(f'        panic!("{w} lost {a} items");'); msg = f"{w} lost {a} items"
                    else: L.append(f'        "x{a}".parse::<u32>().unwrap();'); msg = "called `Result::unwrap()` on an `Err` value"
                    m.plant(msg, f"src/{w}_{f}.rs:{len(L)}", f"{w}_{f}::tests::{nm}")
                else: L.append("        assert_eq!(total(1, 2), 3);")
                L += ["    }", ""]
            L.append("}")
        m.add(f"src/{w}_{f}.rs", "\n".join(L) + "\n")
    m.add("src/lib.rs", src)
@several([("cargo-test", "cargo test", "cargo test --offline"), ("nextest", "cargo nextest run", "cargo-nextest nextest run --offline --no-fail-fast"), ("nextest.color", "cargo nextest run", "cargo-nextest nextest run --offline --no-fail-fast --color always")])
def cargo_test(m, c): cargo(m, True)
@several([("cargo-build", "cargo build", "cargo build --offline"), ("clippy", "cargo clippy --all-targets", "cargo clippy --offline"), ("cargo-build.color", "cargo build", "cargo build --offline --color always"), ("cargo-build.short", "cargo check --message-format short", "cargo check --offline --message-format short")])
def cargo_build(m, c): cargo(m, False)
