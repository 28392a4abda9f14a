#!/usr/bin/env python3
"""Boots a Debian root with its systemd, and has it run windowsill: as the package's service, and as a user's own.

    unshare --net tests/release/services.py ROOT

ROOT is thrown away afterwards; it holds `root/windowsill.deb` and `root/windowsill`, and nothing of ours is installed in it. Each service starts,
answers at once, survives a kill, and leaves nothing behind. Prints one line, which begins with LEFT OUT where this machine cannot boot it.
Needs root, and a network of its own: windowsill's usual port and a server's are free there.
"""

import json, os, pathlib, subprocess, sys, time, urllib.error, urllib.request

from model import serve

ROOT = pathlib.Path(sys.argv[1]).resolve()
ADDRESS = "http://127.0.0.1:8484"
# What `systemd-analyze security` makes of the package's unit is 10 for none of its settings and 0 for all; in tenths.
EXPOSURE = 17
BOOT = """
set -e
cd "$1"
mount --bind . .
cd "$1"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,ro,bind proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
  : > dev/$device
  mount --bind /dev/$device dev/$device
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
exec env -i container=windowsill PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /lib/systemd/systemd --unit=multi-user.target
"""


def waited(seconds, so):
    """Whether it becomes so in time."""
    until = time.monotonic() + seconds
    while not (is_so := so()) and time.monotonic() < until:
        time.sleep(0.1)
    return is_so


class Machine:
    """The root, booted: a process tree, mounts and a control group of its own. An OSError or SubprocessError where these cannot be had."""

    def __init__(self):
        unified = pathlib.Path("/sys/fs/cgroup/unified")
        self.group = (unified if unified.is_dir() else unified.parent) / f"windowsill-{os.getpid()}"
        self.group.mkdir()
        join = lambda: (self.group / "cgroup.procs").write_text(str(os.getpid()))
        command = ["unshare", "--mount", "--pid", "--fork", "--uts", "--ipc", "--cgroup", "--kill-child", "sh", "-c", BOOT, "sh", ROOT]
        self.log = open(ROOT / "root/boot.log", "w+")
        self.outer = subprocess.Popen(command, preexec_fn=join, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        children = pathlib.Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children")
        waited(10, lambda: self.outer.poll() is not None or children.read_text())
        self.init = "" if self.outer.poll() is not None else children.read_text().split()[0]

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        if failed:
            print(self.run("journalctl", "--no-pager", "-n", "40").stdout, file=sys.stderr)
        self.outer.kill()
        self.outer.wait()
        folders = sorted((folder for folder, *_ in os.walk(self.group)), key=len, reverse=True)
        waited(10, lambda: not (self.group / "cgroup.events").read_text().startswith("populated 1"))
        for folder in folders:
            os.rmdir(folder)

    def runs(self):
        """Whether it has booted; what is installed in it is Debian's alone, so that this says something of the machine that we are on."""
        up = lambda: self.outer.poll() is not None or self.run("systemctl", "is-system-running").stdout.strip() in ("running", "degraded")
        return bool(self.init) and waited(40, up) and self.outer.poll() is None

    def run(self, *command, user=""):
        """As root, or as the user who has a manager of their own."""
        inside = ["nsenter", "-t", self.init, "-m", "-p", "-u", "-i", "-C", f"--root=/proc/{self.init}/root", f"--wd=/proc/{self.init}/root"]
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}
        if user:
            inside += ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"]
            env |= {"HOME": "/home/u", "XDG_RUNTIME_DIR": f"/run/user/{user}"}
        return subprocess.run([*inside, *command], env=env, capture_output=True, text=True, timeout=60)

    def must(self, *command, **more):
        done = self.run(*command, **more)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout.strip()


def answers():
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "Say hello."}]}
    request = urllib.request.Request(ADDRESS + "/v1/chat/completions", json.dumps(asked).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.headers["x-windowsill-window"] == "4096" and json.load(reply)["choices"][0]["message"]["content"] == "Hello."
    except (urllib.error.URLError, ConnectionError):
        return False


def survives_a_kill(machine, *systemctl, **who):
    pid = lambda: machine.must(*systemctl, "show", "--property=MainPID", "--value", "windowsill", **who)
    was = pid()
    assert was != "0", "it does not run"
    machine.must(*systemctl, "kill", "--signal=KILL", "windowsill", **who)
    assert waited(10, lambda: pid() not in (was, "0") and answers()), "it does not come back"


def held(*folders):
    """What a removal could leave behind; not what dpkg and systemd keep for themselves."""
    kept = ("/var/lib/dpkg", "/var/lib/systemd", "/var/lib/private", "/var/log", "/var/cache", "/etc/.pwd.lock")
    paths = (f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*"))
    return {path for path in paths if not path.startswith(kept)}


def of_package(machine):
    """The package's service, for all users; a user's own cannot start beside it, and says so. Then none is left."""
    folders = ("etc", "usr", "var")
    before, home = held(*folders), held("home/u")
    machine.must("dpkg", "-i", "/root/windowsill.deb")
    verified = machine.run("systemd-analyze", "verify", "--man=no", "windowsill.service")
    assert verified.returncode == 0 and "windowsill" not in verified.stderr, verified
    machine.must("systemd-analyze", "security", f"--threshold={EXPOSURE}", "windowsill.service")
    machine.must("systemctl", "enable", "--now", "windowsill")
    assert answers(), "it has started, and does not answer"
    pid = machine.must("systemctl", "show", "--property=MainPID", "--value", "windowsill")
    status = machine.must("cat", f"/proc/{pid}/status")
    assert "NoNewPrivs:\t1" in status and "CapBnd:\t0000000000000000" in status and "Uid:\t0" not in status, status
    survives_a_kill(machine, "systemctl")
    # An upgrade restarts it.
    pid = machine.must("systemctl", "show", "--property=MainPID", "--value", "windowsill")
    machine.must("dpkg", "-i", "/root/windowsill.deb")
    assert machine.must("systemctl", "show", "--property=MainPID", "--value", "windowsill") != pid and answers(), "not restarted"
    refused = machine.run("/home/u/.local/bin/windowsill", "service", "install", user=USER)
    assert refused.returncode == 1 and "does not start" in refused.stderr and "hint:" in refused.stderr, refused
    assert machine.run("systemctl", "--user", "is-active", "windowsill", user=USER).stdout.strip() == "inactive", "it is tried for ever"
    machine.must("dpkg", "-P", "windowsill")
    assert not answers(), "it still runs"
    left = held(*folders) - before
    assert not left and not list((ROOT / "var/lib/private").glob("*")), left
    left = held("home/u") - home - {"/home/u/.config"}
    assert not left, left


def of_user(machine):
    """A user's own: installed, with other flags, and removed."""
    as_user = {"user": USER}
    service = lambda *args: machine.run("/home/u/.local/bin/windowsill", "service", *args, user=USER)
    installed = service("install")
    assert installed.returncode == 0 and answers(), (installed, "it is installed, and does not answer")
    status = service("status")
    assert status.returncode == 0 and "active" in status.stdout and "yes, with 1 models" in status.stdout, status
    survives_a_kill(machine, "systemctl", "--user", **as_user)
    again = service("install", "--shadow")
    assert again.returncode == 0 and answers(), again
    assert "--shadow" in machine.must("systemctl", "--user", "show", "--property=ExecStart", "windowsill", **as_user)
    assert "windowsill" in machine.must("journalctl", "--user", "-u", "windowsill", **as_user)
    removed = service("uninstall")
    assert removed.returncode == 0 and not answers(), removed
    assert service("status").returncode == 1
    assert not (ROOT / "home/u/.config/systemd").exists(), "something is left of it"
    assert "windowsill" not in machine.must("systemctl", "--user", "list-unit-files", **as_user)


USER = "1000"


def left_out(why):
    print(f"LEFT OUT: no systemd could be booted here ({why})")


def main():
    try:
        booted = Machine()
    except (OSError, subprocess.SubprocessError) as why:
        return left_out(why)
    with booted as machine:
        if not machine.runs():
            machine.log.seek(0)
            said = machine.log.read().strip().splitlines()
            return left_out(said[-1] if said else "it does not come up")
        serve(8080)
        machine.must("useradd", "--create-home", "--uid", USER, "u")
        machine.must("install", "-D", "-o", USER, "-g", USER, "/root/windowsill", "/home/u/.local/bin/windowsill")
        machine.must("chown", "-R", f"{USER}:{USER}", "/home/u")
        machine.must("loginctl", "enable-linger", "u")
        manager = lambda: machine.run("systemctl", "--user", "is-system-running", user=USER).stdout.strip() == "running"
        assert waited(20, manager), "there is no user's manager"
        of_package(machine)
        of_user(machine)
        print("by systemd: the package's, a user's")


main()
