#!/usr/bin/env python3
"""Checks a built book: every link and picture leads to a file of it, and every `#part` to an element there.

    tests/book/links.py target/book
"""

import html.parser, pathlib, sys, urllib.parse

BOOK = pathlib.Path(sys.argv[1]).resolve()


class Page(html.parser.HTMLParser):
    """The links of a page, and the ids that links may lead to."""

    def __init__(self, path):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, _, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def main():
    # print.html is every page once more, and 404.html is served from anywhere.
    pages = {path: Page(path) for path in sorted(BOOK.rglob("*.html")) if path.name not in ("print.html", "404.html", "toc.html")}
    checked, broken = 0, []
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "index.html" and link == "#":
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            where = f"{path.relative_to(BOOK)}: {link}"
            if not target.is_relative_to(BOOK) or not target.is_file():
                broken.append(f"{where} leads nowhere")
            elif parts.fragment and target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].ids:
                broken.append(f"{where}: there is no such part")
            checked += 1
    print(f"{len(pages)} pages, {checked} links, {len(broken)} broken")
    print("\n".join(broken))
    assert len(pages) > 20 and checked > 100, "that is no book"
    sys.exit(bool(broken))


main()
