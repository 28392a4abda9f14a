"""Shared by the makers: words by seed, planted failures, running."""
import json
import random
import re
import shutil
import subprocess

WORDS = """lease buffer cursor parser socket render token config journal shard replica metric widget tenant quota digest
invoice ledger cart order basket parcel route planner mailer voucher account stock price tariff coupon refund
carrier depot pallet label manifest tracker sensor beacon relay signal channel mixer filter sampler encoder""".split()

class Maker:
    def __init__(self, seed, size):
        self.r = random.Random(seed); self.size = size
        self.words = WORDS[:]; self.r.shuffle(self.words)
        self.files = {}; self.planted = []
    def n(self, small, medium, large):
        base = {"small": small, "medium": medium, "large": large}[self.size]
        return max(1, round(base * self.r.uniform(.8, 1.2)))
    def word(self): return self.r.choice(self.words)
    def pick(self, n): return [self.words[i % len(self.words)] for i in range(n)]
    def num(self): return self.r.randint(11, 9999)
    def chosen(self, total, k): return set(self.r.sample(range(total), min(k, total)))
    def add(self, path, text): self.files[path] = text
    def plant(self, message, place=None, name=None):
        """What a reader must not miss: strings as the tool prints them."""
        item = {"message": message}
        if place: item["place"] = place
        if name: item["name"] = name
        self.planted.append(item)
    def line(self, path, token):
        for n, l in enumerate(self.files[path].split("\n"), 1):
            if token in l: return n
        raise KeyError((path, token))

CASES = []
def case(name, command, run=None, sizes=("small", "medium", "large"), pty=False, needs=None, real=True, **kw):
    """Registers a maker; `command` is what an agent would have asked for."""
    def wrap(make):
        CASES.append(dict(name=name, command=command, run=run or command, sizes=sizes, make=make, pty=pty, needs=needs, real=real, kw=kw))
        return make
    return wrap
def several(variants, **common):
    def wrap(make):
        for name, command, *run in variants: case(name, command, *run, **common)(make)
        return make
    return wrap
ANSI = re.compile(r"\x1b\[[0-9;?:]*[A-Za-z]|\x1b[()][A-Za-z0-9]|\x1b\][^\x07]*\x07")

def run(c, seed, size, out, env, tools):
    m = Maker(f"{c['make'].__name__}-{seed}-{size}", size)
    root = out / "work" / f"{c['name']}-{size}-{seed}"
    shutil.rmtree(root, ignore_errors=True); root.mkdir(parents=True)
    text = c["make"](m, c)
    for path, body in m.files.items():
        p = root / path; p.parent.mkdir(parents=True, exist_ok=True); p.write_text(body.replace("@TOOLS@", str(tools)))
        if body.startswith("#!"): p.chmod(0o755)
    if text is None:
        cmd = c["run"].replace("@TOOLS@", str(tools))
        if c["pty"]: cmd = f"script -qec {json.dumps(cmd)} /dev/null"
        try:
            done = subprocess.run(["bash", "-c", cmd], cwd=root, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=400)
            text = done.stdout.decode("utf-8", "replace")
        except subprocess.TimeoutExpired as e:
            text = (e.stdout or b"").decode("utf-8", "replace"); print("TIMEOUT", c["name"])
    text = text.replace(str(root), "/home/dev/shop").replace(str(tools), "/home/dev/tools")
    plain = ANSI.sub("", text)
    wanted = []
    for item in m.planted:
        kept = {k: v for k, v in item.items() if v in plain}
        missing = {k: v for k, v in item.items() if v not in plain}
        if missing: print(f"   {c['name']} {size} {seed}: not in the output: {missing}")
        if "message" in kept and kept not in wanted: wanted.append(kept)
    shutil.rmtree(root, ignore_errors=True)
    file = f"{c['name']}-{size}-{seed}.txt"
    (out / file).write_text(text)
    return dict(file=file, command=c["command"], bytes=len(text), failures=wanted, real=c["real"])
