"""The tables, on the terminal, in docs/clients.md and in docs/notes/clients.md."""

import json

import indexed
from judge import Row

# A window that holds fewer steps above what the client brings is rewritten nearly every turn: nothing to recommend.
FEWEST_STEPS = 4
BEGIN, END = "<!-- Table {}: written by scripts/clients --page. -->", "<!-- End of what scripts/clients wrote. -->"


def number(n):
    return f"{n:,}"


def of(held, all_):
    return f"{all_ - held} of {all_}"


def line(row):
    """One row for a terminal."""
    missed = row.misses()
    return (f"  {row.client:18} {row.window:7,}  request {of(row.request_lost, row.requests)}  results {of(row.results_lost, row.results)}"
            f" ({row.results_cut} cut)  files {of(row.files_lost, row.files_sent) if row.files_sent else '-'}"
            f"  {'same' if row.same else 'DIFFERS'}  conversations {row.conversations}  rewrites {row.rewrites} of {row.requests} ({row.steps:.1f} steps)"
            f"  {'ok' if not missed else 'MISSED: ' + '; '.join(missed)}")


def write(docs, results, clients):
    """Puts the results so far between the marks of the pages."""
    rows = load(results, clients)
    fill(docs / "clients.md", (("brings", brings(rows)),))
    fill(docs / "notes/clients.md", (("sessions", sessions(rows)), ("index", indexed.table(by_index(results, clients)))))


def fill(path, tables):
    text = path.read_text()
    for name, table in tables:
        begin = BEGIN.format(name)
        head, found, rest = text.partition(begin)
        _, ended, tail = rest.partition(END)
        if not found or not ended:
            raise SystemExit(f"{path} has no place for the table {name}")
        text = head + begin + "\n\n" + table + "\n" + END + tail
    path.write_text(text)


def load(results, clients):
    """[(client, its rows)], most tokens first."""
    out = []
    for client in clients:
        file = results / f"{client.name}.json"
        if file.exists():
            out.append((client, [Row(**row) for row in json.loads(file.read_text())]))
    return sorted(out, key=lambda entry: -entry[1][0].brings)


def by_index(results, clients):
    """The rows of sessions with tools by index, in the order of the clients."""
    files = [results / f"{client.name}.index.json" for client in clients]
    return [indexed.Row(**row) for file in files if file.exists() for row in json.loads(file.read_text())]


def brings(rows):
    lines = ["| client | brings | load the model with |", "|---|---|---|"]
    for client, runs in rows:
        good = [row.window for row in runs if not row.misses() and row.steps >= FEWEST_STEPS]
        lines.append(f"| {client.title} | {number(runs[0].brings)} | {number(min(good)) + ' or more' if good else 'not found'} |")
    return "\n".join(lines) + "\n"


def sessions(rows):
    lines = ["| client | window | requests | current request | newest results | files | ends as directly | conversations | rewrites |",
             "|---|---|---|---|---|---|---|---|---|"]
    for client, runs in rows:
        for row in runs:
            cut = f", {row.results_cut} by a pointer" if row.results_cut else ""
            lines.append(
                f"| {client.title} | {number(row.window)} | {row.requests} | {of(row.request_lost, row.requests)} | {of(row.results_lost, row.results)}{cut} | "
                f"{of(row.files_lost, row.files_sent) if row.files_sent else ''} | {'yes' if row.same else 'no'} | {row.conversations} | {row.rewrites} |")
    return "\n".join(lines) + "\n"
