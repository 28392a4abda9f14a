#!/usr/bin/env python3
"""Installs and runs each package of a folder as a person would, on a root that has nothing of ours: prints a table, fails on the first that fails.

    tests/release/install.py [DIST] [--engine DIST --model FILE] [--root DEBIAN]

Each way goes from nothing to a managed first turn, wraps a client, unwraps it, and leaves its home as it was, within 60 seconds. DEBIAN is
a clean root that `tests/release/debian` makes, copied for the Debian package, and booted for the services, whose row says LEFT OUT where this
machine cannot. Without it the package is only unpacked. With `--engine`, the archive in that folder serves the model FILE itself, and is
tried as a processor without AVX2 would run it. Needs root.
"""

import argparse, json, os, pathlib, shutil, stat, subprocess, sys, tempfile, time, urllib.error, urllib.request

from model import serve

asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
asked.add_argument("dist", type=pathlib.Path, nargs="?", help="what scripts/release made")
asked.add_argument("--engine", type=pathlib.Path, metavar="DIST", help="what scripts/release --engine made")
asked.add_argument("--model", type=pathlib.Path, metavar="FILE", help="a small GGUF that it serves")
asked.add_argument("--root", type=pathlib.Path, metavar="DEBIAN", help="a clean root")
asked = asked.parse_args()
DIST, ENGINE, MODEL, DEBIAN = (path and path.resolve() for path in (asked.dist, asked.engine, asked.model, asked.root))
if ENGINE and not MODEL or not (DIST or ENGINE):
    sys.exit("DIST is needed, or --engine and --model")
LIMIT = 60
# What lintian says of a static binary, which this is meant to be.
EXPECTED = ["statically-linked-binary"]
CLEAN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


def held(home):
    """Everything below a home but windowsill's own folders."""
    return {p: p.read_bytes() if p.is_file() else None for p in sorted(home.rglob("*")) if ".local" not in p.parts}


def first_turn(command, home, upstream, env, inside="/home/u"):
    """Serves, asks once, wraps and unwraps a client. `home` is the folder that the program sees as `inside`; `upstream` is a server's
    address, or what serves a model instead."""
    serves_itself = isinstance(upstream, list)
    of = upstream if serves_itself else ["--upstream", upstream]
    env = {**CLEAN, **env, "HOME": inside, "WINDOWSILL_DATA_DIR": inside + "/.local/record"}
    run = lambda *args, **more: subprocess.run([*command, *args], env={**env, **more}, cwd="/", capture_output=True, text=True, timeout=30)
    version = run("--version")
    assert version.returncode == 0 and version.stdout.startswith("windowsill "), version
    log = tempfile.TemporaryFile("w+")
    served = subprocess.Popen([*command, "serve", "--listen", "127.0.0.1:0", *of], env=env, cwd="/", stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        line = served.stdout.readline()
        assert line.startswith("listening on "), (line, log.seek(0), log.read())
        address = line.split("http://")[1].strip()
        asked = {"model": "tiny", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
        request = urllib.request.Request(f"http://{address}/v1/chat/completions", json.dumps(asked).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            assert reply.headers["x-windowsill-window"] == "4096" and reply.headers["x-windowsill-conversation"], reply.headers
            said = json.load(reply)["choices"][0]["message"]["content"]
            assert said and (serves_itself or said == "Hello."), said
        (home / ".codex").mkdir()
        (home / ".codex/config.toml").write_text('# mine\nmodel = "gpt"\n')
        os.chown(home / ".codex", home.stat().st_uid, home.stat().st_gid)
        os.chown(home / ".codex/config.toml", home.stat().st_uid, home.stat().st_gid)
        before = held(home)
        wrapped = run("wrap", "codex", WINDOWSILL_LISTEN=address)
        assert wrapped.returncode == 0 and address in (home / ".codex/config.toml").read_text(), wrapped
        unwrapped = run("unwrap", "codex")
        assert unwrapped.returncode == 0 and held(home) == before, unwrapped
    except urllib.error.HTTPError as refused:
        log.seek(0)
        raise AssertionError(f"{refused}: {refused.read()!r}\n{log.read()}") from None
    finally:
        served.terminate()
        served.wait(20)
    return version.stdout.strip()


def found(pattern, folder=DIST):
    paths = sorted(folder.glob(pattern))
    assert len(paths) == 1, f"{pattern}: {paths}"
    return paths[0]


def bare(work):
    """A root with a home and nothing else."""
    root = work / "root"
    for folder in ("home/u", "tmp"):
        (root / folder).mkdir(parents=True)
    return root, root / "home/u"


def archive(work, upstream):
    root, home = bare(work)
    subprocess.run(["tar", "--zstd", "-xf", found("windowsill-*-x86_64-unknown-linux-musl.tar.zst"), "-C", root, "--strip-components=1"], check=True)
    assert (root / "man/windowsill.1").exists() and (root / "completions/_windowsill").exists() and (root / "LICENSE-MIT").exists()
    return first_turn(["chroot", str(root), "/windowsill"], home, upstream, {})


def engine(work, _):
    """The archive with llama.cpp in it: serves a model, and says on an old processor why it does not."""
    root, home = bare(work)
    # As any machine has them: it starts itself again by /proc, and llama.cpp draws random numbers.
    (root / "proc").mkdir()
    (root / "dev").mkdir()
    os.mknod(root / "dev/urandom", 0o666 | stat.S_IFCHR, os.makedev(1, 9))
    archive = found("windowsill-*-x86_64-unknown-linux-musl.tar.zst", ENGINE)
    subprocess.run(["tar", "--zstd", "-xf", archive, "-C", root, "--strip-components=1"], check=True)
    shutil.copy(MODEL, root / "tiny.gguf")
    script = f"mount -t proc proc {root}/proc && exec chroot {root} /windowsill \"$@\""
    command = ["unshare", "--mount", "sh", "-c", script, "sh"]
    told = first_turn(command, home, ["--model", "/tiny.gguf", "--num-ctx", "4096"], {})
    emulator = shutil.which("qemu-x86_64-static")
    if not emulator:
        return told + " (no qemu)"
    old = [emulator, "-cpu", "Nehalem", root / "windowsill"]
    refused = subprocess.run([*old, "devices-worker"], env=CLEAN, capture_output=True, text=True, timeout=30)
    assert refused.returncode == 1 and "processor does not have (AVX, AVX2, FMA, F16C, BMI2)" in refused.stderr, refused
    # What needs no llama.cpp works there.
    subprocess.run([*old, "pages", work / "pages"], env=CLEAN, check=True, capture_output=True, timeout=60)
    return told


def arm64_engine(work, _):
    """The engine for the other machine answers in an emulator, one process of it: it could not start itself again there."""
    root, _ = bare(work)
    archive = found("windowsill-*-aarch64-unknown-linux-musl.tar.zst", ENGINE)
    subprocess.run(["tar", "--zstd", "-xf", archive, "-C", root, "--strip-components=1"], check=True)
    sizes = ["--ctx-size", "256", "--batch-size", "64", "--ubatch-size", "64", "--threads", "2", "--threads-batch", "2"]
    more = ["--kv-type", "f16", "--memory-headroom", "0.1"]
    program = ["qemu-aarch64-static", root / "windowsill"]
    worker = subprocess.Popen([*program, "engine-worker", "--model", MODEL, *sizes, *more], env=CLEAN, text=True, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    body = {"messages": [{"role": "user", "content": "Say hello."}], "sampling": {"temperature": 0}}
    request = {"body": body, "stop": [], "max_tokens": 4, "stream": False, "count": False, "spare": 0}
    for line in ({"chat_template": None}, {"answer": {"id": 1, "request": request}}):
        worker.stdin.write(json.dumps(line) + "\n")
        worker.stdin.flush()
    news = []
    for line in worker.stdout:
        news.append(line)
        if "ended" in line or "refused" in line or "failed" in line:
            break
    worker.kill()
    worker.wait()
    assert news and '"ended"' in news[-1] and '"content"' in news[-2], news
    return subprocess.run([*program, "--version"], check=True, capture_output=True, text=True).stdout.strip() + " (emulated)"


def deb(work, upstream):
    package = found("windowsill_*_amd64.deb")
    if not DEBIAN:
        root, home = bare(work)
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
        return first_turn(["chroot", str(root), "/usr/bin/windowsill"], home, upstream, {}) + " (only unpacked)"
    root = work / "root"
    subprocess.run(["cp", "-a", DEBIAN, root], check=True)
    shutil.copy(package, root / "tmp/windowsill.deb")
    inside = lambda *args: subprocess.run(["chroot", str(root), *args], env=CLEAN, check=True, capture_output=True, text=True)
    inside("dpkg", "-i", "/tmp/windowsill.deb")
    for path in ("usr/lib/systemd/system/windowsill.service", "lib/systemd/system/windowsill.service"):
        if (root / path).exists():
            break
    else:
        raise AssertionError("the package brings no unit")
    for path in ("etc/windowsill/config.toml", "usr/share/man/man1/windowsill.1.gz", "usr/share/bash-completion/completions/windowsill"):
        # Minimal roots leave out man pages.
        assert (root / path).exists() or "man" in path, path
    (root / "home/u").mkdir()
    told = first_turn(["chroot", str(root), "windowsill"], root / "home/u", upstream, {})
    inside("dpkg", "-P", "windowsill")
    assert not (root / "usr/bin/windowsill").exists() and not (root / "etc/windowsill").exists(), "something is left of it"
    return told


def wheel(work, upstream):
    home = work / "home"
    home.mkdir()
    subprocess.run([sys.executable, "-m", "venv", work / "venv"], check=True)
    pip = [work / "venv/bin/python", "-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check"]
    subprocess.run([*pip, found("windowsill-*x86_64.whl")], check=True)
    return first_turn([str(work / "venv/bin/windowsill")], home, upstream, {}, str(home))


def npm(work, upstream):
    home = work / "home"
    home.mkdir()
    tgz = [found("windowsill-linux-x64-*.tgz"), found("windowsill-[0-9]*.tgz")]
    # One that is not there is left out: the platform's own package is named beside it.
    (work / "package.json").write_text("{}")
    npm = ["npm", "install", "--offline", "--no-audit", "--no-fund", "--omit=optional", "--prefix", work, "--cache", work / "cache"]
    subprocess.run([*npm, *tgz], check=True, capture_output=True)
    node = shutil.which("node")
    return first_turn([node, str(work / "node_modules/windowsill/windowsill.js")], home, upstream, {}, str(home))


def oci(work, upstream):
    import hashlib, tarfile
    image, root = work / "image", work / "root"
    image.mkdir()
    with tarfile.open(found("windowsill-*-amd64.oci.tar")) as tar:
        tar.extractall(image)
    for blob in (image / "blobs/sha256").iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name, blob
    blob = lambda digest: image / "blobs/sha256" / digest.split(":")[1]
    manifest = json.loads(blob(json.loads((image / "index.json").read_text())["manifests"][0]["digest"]).read_text())
    config = json.loads(blob(manifest["config"]["digest"]).read_text())["config"]
    root.mkdir()
    for layer in manifest["layers"]:
        subprocess.run(["tar", "-xzf", blob(layer["digest"]), "-C", root], check=True)
    # As a runtime does it: its user, a root that is read-only, its volumes.
    (work / "data").mkdir()
    user = config["User"].split(":")
    os.chown(work / "data", int(user[0]), int(user[1]))
    script = f"mount --bind {root} {root} && mount --bind {work}/data {root}/data && mount -t tmpfs tmpfs {root}/tmp && mount -o remount,ro,bind {root} && "
    script += f"exec chroot --userspec={config['User']} {root} \"$@\""
    command = ["unshare", "--mount", "sh", "-c", script, "sh", *config["Entrypoint"]]
    env = dict(pair.split("=", 1) for pair in config["Env"])
    return first_turn(command, work / "data", upstream, env, "/data")


def arm64(work, upstream):
    """The archive for the other machine, where there is one and an emulator for it."""
    root, home = bare(work)
    archive = found("windowsill-*-aarch64-unknown-linux-musl.tar.zst")
    subprocess.run(["tar", "--zstd", "-xf", archive, "-C", root, "--strip-components=1"], check=True)
    shutil.copy(shutil.which("qemu-aarch64-static"), root / "qemu")
    return first_turn(["chroot", str(root), "/qemu", "/windowsill"], home, upstream, {})


def services(work, _):
    """The Debian package's service and a user's own, on the clean root, booted with its systemd, on a network of its own."""
    if not (DEBIAN and (DEBIAN / "lib/systemd/systemd").exists()):
        return "LEFT OUT: no clean root with systemd"
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        return "LEFT OUT: no network of its own can be had here"
    root = work / "root"
    subprocess.run(["cp", "-a", DEBIAN, root], check=True)
    shutil.copy(found("windowsill_*_amd64.deb"), root / "root/windowsill.deb")
    archive = found("windowsill-*-x86_64-unknown-linux-musl.tar.zst")
    subprocess.run(["tar", "--zstd", "-xf", archive, "-C", root / "root", "--strip-components=1", "--wildcards", "*/windowsill"], check=True)
    test = pathlib.Path(__file__).with_name("services.py")
    done = subprocess.run(["unshare", "--net", sys.executable, test, root], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, "the services did not pass; see above"
    return done.stdout.strip()


def linted():
    """What the linters say that are there: nothing, or this fails. Prints which they were."""
    linters = {"lintian": ["lintian", "--fail-on", "error,warning", "--suppress-tags", ",".join(EXPECTED), found("windowsill_*_amd64.deb")]}
    if (DIST / "windowsill.rb").exists():
        linters["ruby"] = ["ruby", "-c", DIST / "windowsill.rb"]
    for name, command in linters.items():
        if not shutil.which(name):
            print(f"{name:<8} is not installed: left out")
            continue
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        print(f"{name:<8} has nothing to say")


def main():
    upstream = serve()
    for folder in filter(None, (DIST, ENGINE)):
        subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=folder, check=True)
        sbom = json.loads(found("windowsill-*-x86_64-unknown-linux-musl.cdx.json", folder).read_text())
        assert any(c["name"] == "tokio" for c in sbom["components"]) and not any(c["name"] == "proptest" for c in sbom["components"])
    ways = [archive, deb, wheel, npm, oci, services] * bool(DIST) + [engine] * bool(ENGINE)
    for folder, way in ((DIST, arm64), (ENGINE, arm64_engine)):
        if folder and list(folder.glob("windowsill-*-aarch64-unknown-linux-musl.tar.zst")) and shutil.which("qemu-aarch64-static"):
            ways.append(way)
    for way in ways:
        with tempfile.TemporaryDirectory(prefix="windowsill-release-") as work:
            os.chmod(work, 0o755)
            started = time.monotonic()
            told = way(pathlib.Path(work), upstream)
            took = time.monotonic() - started
            print(f"{way.__name__:<8} {told:<36} {took:5.1f} s", flush=True)
            assert took <= LIMIT, f"{way.__name__} took more than {LIMIT} s"
    if DIST:
        linted()


main()
