#!/usr/bin/env python3
"""Packs one windowsill binary, as scripts/release asks for it. Standard library, zstd and dpkg-deb alone; the same input gives the same bytes.

    pack.py OUT TARGET BINARY PAGES VERSION EPOCH PART…      parts: archive sbom deb wheel npm oci formula winget sums
"""

import base64, gzip, hashlib, io, json, os, pathlib, subprocess, sys, tarfile, tempfile, time, uuid, zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT, TARGET, BINARY, PAGES = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4])
VERSION, EPOCH, PARTS = sys.argv[5], int(sys.argv[6]), sys.argv[7:]
OUT = pathlib.Path(OUT)
MAINTAINER = os.environ.get("WINDOWSILL_MAINTAINER", "windowsill contributors <windowsill@example.org>")
BRIEFLY = "keeps long local chats within the window that the model has"
ABOUT = "Keeps long local chats and agent sessions within the context window that the model really has"
HOME = os.environ.get("WINDOWSILL_URL", "")  # where releases are had; where that is not known, nothing names it
LICENSE = "MIT OR Apache-2.0"
MACHINE = TARGET.split("-")[0]
NAMES = {"x86_64": ("amd64", "x64"), "aarch64": ("arm64", "arm64")}[MACHINE]
ARCHIVE = OUT / f"windowsill-{VERSION}-{TARGET}.tar.zst"
LICENSES = ["LICENSE-MIT", "LICENSE-APACHE"]


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def tar(files, root=""):
    """A tar of {path: (bytes, mode)}; `None` for the bytes of a folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, (data, mode, *owner) in sorted(files.items()):
            info = tarfile.TarInfo(root + name)
            info.mtime, info.mode = EPOCH, mode
            info.uid = info.gid = owner[0] if owner else 0
            if data is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(data)
            archive.addfile(info, None if data is None else io.BytesIO(data))
    return out.getvalue()


def archive():
    files = {"windowsill": (BINARY.read_bytes(), 0o755)}
    for name in ["README.md", "CHANGELOG.md", "config.toml", *LICENSES]:
        files[name] = ((ROOT / name).read_bytes(), 0o644)
    for page in sorted(PAGES.rglob("*")):
        if page.is_file():
            files[str(page.relative_to(PAGES))] = (page.read_bytes(), 0o644)
    data = tar(files, f"windowsill-{VERSION}-{TARGET}/")
    ARCHIVE.write_bytes(subprocess.run(["zstd", "-19", "-q", "-c"], input=data, capture_output=True, check=True).stdout)


def sbom():
    """CycloneDX 1.5, from what Cargo resolved for this binary."""
    features = ["--no-default-features"] if "engine" not in os.environ.get("FEATURES", "") else []
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET, *features]
    known = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    packages = {p["id"]: p for p in known["packages"]}
    nodes = {n["id"]: [d["pkg"] for d in n["deps"] if any(k["kind"] != "dev" for k in d["dep_kinds"])] for n in known["resolve"]["nodes"]}
    top, seen, todo = known["resolve"]["root"], set(), [known["resolve"]["root"]]
    while todo:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            todo += nodes[at]
    ref = lambda p: f"pkg:cargo/{packages[p]['name']}@{packages[p]['version']}"
    component = lambda p: {
        "type": "application" if p == top else "library", "bom-ref": ref(p), "name": packages[p]["name"],
        "version": packages[p]["version"], "purl": ref(p),
        "licenses": [{"expression": packages[p]["license"].replace("/", " OR ")}] if packages[p]["license"] else [],
    }
    rest = sorted(seen - {top}, key=ref)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH))
    bom = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "serialNumber": "urn:uuid:" + str(uuid.uuid5(uuid.NAMESPACE_URL, f"{HOME}/{VERSION}/{TARGET}")),
        "metadata": {"timestamp": when, "component": component(top) | {"hashes": [{"alg": "SHA-256", "content": sha256(BINARY.read_bytes())}]}},
        "components": [component(p) for p in rest],
        "dependencies": [{"ref": ref(p), "dependsOn": sorted({ref(d) for d in nodes[p]})} for p in [top, *rest]],
    }
    (OUT / f"windowsill-{VERSION}-{TARGET}.cdx.json").write_text(json.dumps(bom, indent=1) + "\n")


def changelog_of_deb():
    """Debian's form of it, with this version alone; CHANGELOG.md stands beside it."""
    when = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(EPOCH))
    return f"windowsill ({VERSION}) stable; urgency=medium\n\n  * Released. CHANGELOG.md says what changed.\n\n -- {MAINTAINER}  {when}\n"


def copyright_of_deb():
    """Debian's form of it: the Apache license is on every Debian already."""
    mit = (ROOT / "LICENSE-MIT").read_text()
    holder = next(line for line in mit.splitlines() if line.startswith("Copyright (c) ")).removeprefix("Copyright (c) ")
    indented = lambda text: "".join(f" {line or '.'}\n" for line in text.strip().splitlines())
    apache = "On Debian systems, the whole text of this license is in\n/usr/share/common-licenses/Apache-2.0."
    head = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n" + f"Source: {HOME}\n" * bool(HOME) + "\n"
    files = f"Files: *\nCopyright: {holder}\nLicense: Expat or Apache-2.0\n\n"
    permission = mit.split("\n\n", 2)[2]
    return head + files + f"License: Expat\n{indented(permission)}\nLicense: Apache-2.0\n{indented(apache)}"


def deb():
    """The binary, its pages, and a unit for all users that nobody starts but who wants it: systemctl enable --now windowsill."""
    files = {
        "usr/bin/windowsill": (BINARY.read_bytes(), 0o755),
        "etc/windowsill/config.toml": ((ROOT / "config.toml").read_bytes(), 0o644),
        "usr/lib/systemd/system/windowsill.service": ((ROOT / "packaging/debian/windowsill.service").read_bytes(), 0o644),
        "usr/share/bash-completion/completions/windowsill": ((PAGES / "completions/windowsill.bash").read_bytes(), 0o644),
        "usr/share/zsh/vendor-completions/_windowsill": ((PAGES / "completions/_windowsill").read_bytes(), 0o644),
        "usr/share/fish/vendor_completions.d/windowsill.fish": ((PAGES / "completions/windowsill.fish").read_bytes(), 0o644),
        "usr/share/doc/windowsill/copyright": (copyright_of_deb().encode(), 0o644),
        "usr/share/doc/windowsill/changelog.gz": (gzip.compress(changelog_of_deb().encode(), mtime=0), 0o644),
        "usr/share/doc/windowsill/CHANGELOG.md.gz": (gzip.compress((ROOT / "CHANGELOG.md").read_bytes(), mtime=0), 0o644),
    }
    for page in sorted((PAGES / "man").iterdir()):
        files[f"usr/share/man/man1/{page.name}.gz"] = (gzip.compress(page.read_bytes(), mtime=0), 0o644)
    size = sum(len(data) for data, _ in files.values()) // 1024 + 1
    control = f"Package: windowsill\nVersion: {VERSION}\nArchitecture: {NAMES[0]}\nMaintainer: {MAINTAINER}\n"
    control += f"Installed-Size: {size}\nSection: utils\nPriority: optional\n"
    control += f"Homepage: {HOME}\n" * bool(HOME) + f"Description: {BRIEFLY}\n"
    control += " A proxy between chat or agent clients and a local inference server. What leaves\n a prompt stays on the disk, word for word.\n"
    reload = "[ ! -d /run/systemd/system ] || systemctl daemon-reload || true\n"
    # After an upgrade, the new binary: where it runs.
    restart = "[ ! -d /run/systemd/system ] || systemctl try-restart windowsill.service || true\n"
    # What is purged is the record, too. A unit that failed is forgotten.
    purge = '[ "$1" != purge ] || rm -rf /var/lib/windowsill /var/lib/private/windowsill\n'
    purge += "[ ! -d /run/systemd/system ] || systemctl reset-failed windowsill.service 2> /dev/null || true\n"
    stop = "[ ! -d /run/systemd/system ] || systemctl disable --now windowsill.service || true\n"
    files |= {
        "DEBIAN/control": (control.encode(), 0o644), "DEBIAN/conffiles": (b"/etc/windowsill/config.toml\n", 0o644),
        "DEBIAN/postinst": (f"#!/bin/sh\nset -e\n{reload}{restart}".encode(), 0o755),
        "DEBIAN/postrm": (f"#!/bin/sh\nset -e\n{purge}{reload}".encode(), 0o755),
        "DEBIAN/prerm": (f'#!/bin/sh\nset -e\n[ "$1" != remove ] || {{ {stop.strip()}; }}\n'.encode(), 0o755),
        "DEBIAN/md5sums": ("".join(f"{hashlib.md5(data).hexdigest()}  {name}\n" for name, (data, _) in files.items()).encode(), 0o644),
    }
    with tempfile.TemporaryDirectory() as stage:
        for name, (data, mode) in files.items():
            path = pathlib.Path(stage, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(mode)
        os.chmod(stage, 0o755)
        for folder, folders, _ in os.walk(stage):
            for each in folders:
                os.chmod(os.path.join(folder, each), 0o755)
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", stage, OUT / f"windowsill_{VERSION}_{NAMES[0]}.deb"]
        subprocess.run(command, env=os.environ | {"SOURCE_DATE_EPOCH": str(EPOCH)}, check=True, stdout=subprocess.DEVNULL)


def wheel():
    # A static binary runs on every libc.
    tags = f"manylinux_2_17_{MACHINE}.manylinux2014_{MACHINE}.musllinux_1_1_{MACHINE}"
    info = f"windowsill-{VERSION}.dist-info"
    readme = (ROOT / "README.md").read_text()
    meta = f"Metadata-Version: 2.1\nName: windowsill\nVersion: {VERSION}\nSummary: {ABOUT}\nLicense: {LICENSE}\n"
    meta += f"Home-page: {HOME}\n" * bool(HOME)
    meta += "Requires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n" + readme
    kind = "Wheel-Version: 1.0\nGenerator: windowsill scripts/release\nRoot-Is-Purelib: false\n"
    kind += "".join(f"Tag: py3-none-{tag}\n" for tag in tags.split("."))
    files = {
        f"windowsill-{VERSION}.data/scripts/windowsill": (BINARY.read_bytes(), 0o755),
        f"{info}/METADATA": (meta.encode(), 0o644),
        f"{info}/WHEEL": (kind.encode(), 0o644),
        **{f"{info}/licenses/{name}": ((ROOT / name).read_bytes(), 0o644) for name in LICENSES},
    }
    digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    record = "".join(f"{name},sha256={digest(data)},{len(data)}\n" for name, (data, _) in files.items())
    files[f"{info}/RECORD"] = ((record + f"{info}/RECORD,,\n").encode(), 0o644)
    with zipfile.ZipFile(OUT / f"windowsill-{VERSION}-py3-none-{tags}.whl", "w", zipfile.ZIP_DEFLATED) as out:
        for name, (data, mode) in files.items():
            entry = zipfile.ZipInfo(name, time.gmtime(EPOCH)[:6])
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            out.writestr(entry, data)


def npm():
    common = {"version": VERSION, "license": LICENSE} | ({"homepage": HOME} if HOME else {})
    platform = f"windowsill-linux-{NAMES[1]}"
    licenses = {name: ((ROOT / name).read_bytes(), 0o644) for name in LICENSES}
    describe = lambda value: (json.dumps(value, indent=2).encode() + b"\n", 0o644)
    packages = {
        platform: {
            "package.json": describe({"name": platform, "description": f"windowsill for Linux on {NAMES[1]}", **common, "os": ["linux"], "cpu": [NAMES[1]]}),
            "bin/windowsill": (BINARY.read_bytes(), 0o755), **licenses,
        },
        "windowsill": {
            "package.json": describe({
                "name": "windowsill", "description": ABOUT, **common, "bin": {"windowsill": "windowsill.js"}, "engines": {"node": ">=18"},
                "optionalDependencies": {f"windowsill-linux-{arch}": VERSION for arch in ("x64", "arm64")},
            }),
            "windowsill.js": ((ROOT / "packaging/npm/windowsill.js").read_bytes(), 0o755),
            "README.md": ((ROOT / "README.md").read_bytes(), 0o644), **licenses,
        },
    }
    for name, files in packages.items():
        (OUT / f"{name}-{VERSION}.tgz").write_bytes(gzip.compress(tar(files, "package/"), mtime=EPOCH))


def oci():
    """An image from scratch: the binary, a user and its folder."""
    user = 65532
    layer = tar({
        "etc": (None, 0o755), "etc/passwd": (f"windowsill:x:{user}:{user}::/data:/windowsill\n".encode(), 0o644),
        "etc/group": (f"windowsill:x:{user}:\n".encode(), 0o644),
        "data": (None, 0o700, user), "tmp": (None, 0o1777), "windowsill": (BINARY.read_bytes(), 0o755),
    })
    packed = gzip.compress(layer, mtime=EPOCH)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH))
    labels = {"org.opencontainers.image.version": VERSION, "org.opencontainers.image.licenses": LICENSE,
              "org.opencontainers.image.description": ABOUT} | ({"org.opencontainers.image.source": HOME} if HOME else {})
    blobs = {}

    def blob(data, media):
        blobs["blobs/sha256/" + sha256(data)] = (data, 0o644)
        return {"mediaType": media, "digest": "sha256:" + sha256(data), "size": len(data)}

    text = lambda value: json.dumps(value, sort_keys=True).encode()
    config = text({
        "created": when, "architecture": NAMES[0], "os": "linux", "rootfs": {"type": "layers", "diff_ids": ["sha256:" + sha256(layer)]},
        "config": {
            "User": f"{user}:{user}", "Entrypoint": ["/windowsill"], "Cmd": ["serve"], "WorkingDir": "/data", "Volumes": {"/data": {}, "/tmp": {}},
            "Env": ["HOME=/data", "WINDOWSILL_DATA_DIR=/data", "WINDOWSILL_LISTEN=0.0.0.0:8484"], "ExposedPorts": {"8484/tcp": {}}, "Labels": labels,
        },
    })
    manifest = text({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(config, "application/vnd.oci.image.config.v1+json"),
        "layers": [blob(packed, "application/vnd.oci.image.layer.v1.tar+gzip")],
    })
    entry = blob(manifest, "application/vnd.oci.image.manifest.v1+json") | {
        "platform": {"architecture": NAMES[0], "os": "linux"}, "annotations": {"org.opencontainers.image.ref.name": VERSION}}
    index = text({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]})
    files = {"oci-layout": (b'{"imageLayoutVersion":"1.0.0"}', 0o644), "index.json": (index, 0o644), **blobs}
    (OUT / f"windowsill-{VERSION}-{NAMES[0]}.oci.tar").write_bytes(tar(files))


def formula():
    """For Homebrew on Linux; each archive that is there adds its own part. It says where they are, so that has to be known."""
    if not HOME:
        return print("no formula: WINDOWSILL_URL does not say where releases are had")
    parts = ""
    for arch, when in (("x86_64", "intel"), ("aarch64", "arm")):
        path = OUT / f"windowsill-{VERSION}-{arch}-unknown-linux-musl.tar.zst"
        if path.exists():
            parts += f'    on_{when} do\n      url "{HOME}/releases/download/v{VERSION}/{path.name}"\n      sha256 "{sha256(path.read_bytes())}"\n    end\n'
    (OUT / "windowsill.rb").write_text(f'''class Windowsill < Formula
  desc "{BRIEFLY[0].upper() + BRIEFLY[1:]}"
  homepage "{HOME}"
  version "{VERSION}"
  license any_of: ["MIT", "Apache-2.0"]

  depends_on :linux

  on_linux do
{parts}  end

  def install
    bin.install "windowsill"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/windowsill.bash" => "windowsill"
    zsh_completion.install "completions/_windowsill"
    fish_completion.install "completions/windowsill.fish"
  end

  service do
    run [opt_bin/"windowsill", "serve"]
    keep_alive crashed: true
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/windowsill --version")
  end
end
''')


def winget():
    """The three manifests; the release workflow fills in the hash of the Windows archive that it builds."""
    windows = OUT / f"windowsill-{VERSION}-x86_64-pc-windows-msvc.zip"
    if not windows.exists() or not HOME:
        return
    folder = OUT / "winget"
    folder.mkdir(exist_ok=True)
    head = f"PackageIdentifier: windowsill.windowsill\nPackageVersion: {VERSION}\n"
    (folder / "windowsill.windowsill.yaml").write_text(head + "DefaultLocale: en-US\nManifestType: version\nManifestVersion: 1.6.0\n")
    (folder / "windowsill.windowsill.locale.en-US.yaml").write_text(
        head + f"PackageLocale: en-US\nPublisher: windowsill\nPackageName: windowsill\nLicense: {LICENSE}\nShortDescription: {ABOUT}\n"
        f"PackageUrl: {HOME}\nManifestType: defaultLocale\nManifestVersion: 1.6.0\n")
    (folder / "windowsill.windowsill.installer.yaml").write_text(
        head + "InstallerType: zip\nNestedInstallerType: portable\nNestedInstallerFiles:\n  - RelativeFilePath: windowsill.exe\n"
        f"    PortableCommandAlias: windowsill\nInstallers:\n  - Architecture: x64\n    InstallerUrl: {HOME}/releases/download/v{VERSION}/{windows.name}\n"
        f"    InstallerSha256: {sha256(windows.read_bytes()).upper()}\nManifestType: installer\nManifestVersion: 1.6.0\n")


def sums():
    files = sorted(p for p in OUT.iterdir() if p.is_file() and p.name != "SHA256SUMS")
    (OUT / "SHA256SUMS").write_text("".join(f"{sha256(p.read_bytes())}  {p.name}\n" for p in files))


for part in PARTS:
    globals()[part]()
