"""The site has every page as a forge shows it, leads to sources by one address, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from playwright.sync_api import Page, sync_playwright

from docs.generate.site import MOVED
from tests.cases import cases

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parent.parent.parent
REPOSITORY = "https://forge.invalid/somebody/tacit/blob/main"
PAGES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
COUNTED = ("h1", "h2", "h3", "h4", "ul", "ol", "li", "table", "th", "td", "pre", "img", "strong", "em")
WIDTHS = (1360, 390)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    command = [str(Path(sys.executable).with_name("mkdocs")), "build", "--quiet", "--strict", "--site-dir", str(target)]
    environment = {**os.environ, "TACIT_REPOSITORY": REPOSITORY, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def place(page: str) -> str:
    return re.sub(r"(^|/)index$", r"\1", MOVED.get(page, page.removeprefix("docs/")).removesuffix(".md"))


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] += tag in COUNTED
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def elements(site: Path, page: str) -> Elements:
    article = re.search(r"<article.*</article>", (site / place(page) / "index.html").read_text("utf-8"), re.DOTALL)
    assert article is not None
    return Elements(article[0])


@cases("page", PAGES)
def test_a_page_has_what_it_has_on_a_forge(site: Path, page: str) -> None:
    """Two dialects of Markdown read it: they differ about lists within lists, and what interrupts a paragraph."""
    forge = Elements(MarkdownIt("gfm-like", {"linkify": False}).render((ROOT / page).read_text("utf-8")))
    assert +elements(site, page).counts == +forge.counts


def test_links_to_sources_lead_to_the_repository(site: Path) -> None:
    links = {link for page in PAGES for link in elements(site, page).links}
    sources = {link.removeprefix(REPOSITORY + "/") for link in links if link.startswith(REPOSITORY)}
    assert len(sources) > 50
    assert {source for source in sources if not (ROOT / source).exists()} == set()
    assert {
        source for source in sources if source.startswith("docs/") and not source.startswith("docs/generate")
    } == set()


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@cases("scheme", ["light", "dark"])
def test_in_a_browser(address: str, chromium: str, scheme: str) -> None:
    asked: list[str] = []
    said: list[str] = []

    def opened(page: Page, name: str) -> Page:
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.goto(address + name)
        return page

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=120_000)
        for width in WIDTHS:
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
            context.set_default_timeout(120_000)
            page = opened(context.new_page(), "choosing/")
            # A diagram that is drawn is a box in the place of its text.
            page.wait_for_function("!document.querySelector('pre.mermaid') && document.querySelector('div.mermaid')")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page = opened(context.new_page(), "")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate("document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]
        browser.close()
    assert asked
    assert [url for url in asked if not url.startswith((address, "data:"))] == []
    assert said == []
