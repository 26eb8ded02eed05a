"""HTML as a reader gets it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link"}
LOADS = {"src", "srcset", "href", "xlink:href", "data", "poster", "action", "background", "cite"}


class Page(HTMLParser):
    """The page as a reader gets it: its text, identifiers, references; fails on tags that do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.inline: list[str] = []
        """Attributes that are style or script."""
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value or "")
            if name in LOADS:
                self.references.append(value or "")
            if name == "style" or name.startswith("on"):
                self.inline.append(name)
            self.references += re.findall(r"url\(([^)]*)\)", value or "")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)
