"""What mkdocs asks of us: the pages of the site, their order, where links lead, and Mermaid.

Pages are written for a forge: links lead from file to file in the repository. On the site the README is the first
page; docs/README.md is the list of all pages, and the order of the sidebar; the other pages of the root are pages as
well. A link to anything else leads to the repository's address (`extra.repository` in mkdocs.yml), or is plain text
where none is given.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parent.parent.parent
INDEX: Final = "docs/README.md"
MOVED: Final = {
    "README.md": "index.md",
    INDEX: "pages.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "CHANGELOG.md": "changelog.md",
    "docs/spec/README.md": "spec/index.md",
}
"""Pages that have another place on the site than docs/ gives them, by their place in the repository."""

PROJECT: Final = ("pages.md", "contributing.md", "reporting.md", "changelog.md")
MERMAID: Final = "assets/javascripts/mermaid.js"

_FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the sidebar of docs/README.md: a section for each heading, with the pages that it links, in their order."""
    sections: list[Any] = [{"Quick start": MOVED["README.md"]}]
    listed = set(MOVED.values()) - {"spec/index.md"}
    for section in re.split(r"^## ", (ROOT / INDEX).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        linked = [_place(INDEX, link["target"]) for link in _LINK.finditer(text)]
        found = [MOVED.get(path, path.removeprefix("docs/")) for path in linked if path.endswith(".md")]
        pages = [page for page in dict.fromkeys(found) if page not in listed]
        listed.update(pages)
        sections.append({title: pages})
    config.nav = [*sections, {"The project": list(PROJECT)}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the pages of MOVED where it says, and Mermaid beside the theme's scripts."""
    for path, place in MOVED.items():
        old = files.get_file_from_path(path.removeprefix("docs/")) if path.startswith("docs/") else None
        if old is not None:
            files.remove(old)
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between files of the repository to links between pages, or to the repository."""
    place = page.file.src_uri
    path = next((old for old, new in MOVED.items() if new == place), f"docs/{place}")
    whole, end = "", 0
    # Code shows links, and has none.
    for code in _FENCE.finditer(markdown):
        whole += _rewritten(markdown[end : code.start()], path, place, config) + code[0]
        end = code.end()
    return whole + _rewritten(markdown[end:], path, place, config)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load Mermaid before the theme does, where there are diagrams: the theme would fetch it from elsewhere."""
    if 'class="mermaid"' not in output:
        return output
    script = f'<script src="{posixpath.relpath(MERMAID, posixpath.dirname(page.file.dest_uri) or ".")}"></script>'
    head, body = output.split("</head>", 1)
    return f"{head}{script}</head>{body}"


def on_post_build(config: MkDocsConfig) -> None:
    """Copy Mermaid, which the package mermaidx has unchanged. PluginError if it is not there."""
    package = find_spec("mermaidx")
    source = Path(*(package.submodule_search_locations or ()), "assets", "mermaid.js") if package else Path()
    if not source.is_file():
        raise PluginError("the site needs assets/mermaid.js of the package mermaidx: install the extra `site`")
    target = Path(config.site_dir, MERMAID)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _place(path: str, target: str) -> str:
    """Where a link of the file `path` leads, from the root of the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def _rewritten(text: str, path: str, place: str, config: MkDocsConfig) -> str:
    def replace(link: re.Match[str]) -> str:
        target = link["target"]
        if re.match(r"[a-z]+:", target):
            return link[0]
        leads = _place(path, target)
        if leads in MOVED or (leads.startswith("docs/") and not leads.startswith("docs/generate")):
            inside = MOVED.get(leads, leads.removeprefix("docs/"))
            to = posixpath.relpath(inside, posixpath.dirname(place) or ".")
            return f"[{link['text']}]({to}{link['anchor'] or ''})"
        if not (ROOT / leads).exists():
            return link[0]
        repository = config.extra["repository"]
        return f"[{link['text']}]({repository.rstrip('/')}/{leads})" if repository else link["text"]

    return _LINK.sub(replace, text)
