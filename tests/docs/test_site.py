"""The site as it is built: it holds every public name, and keeps to itself."""

from __future__ import annotations

import html.parser
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import mongoq
import mongoq.testing

pytestmark = pytest.mark.prove

ROOT = Path(__file__).parents[2]
LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


class Loads(html.parser.HTMLParser):
    """Collects the anchors of a page, and what its reader's browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.anchors.add(attributes.get("id", ""))
        if LOADS.get(tag) in attributes and attributes.get("rel") not in ("canonical", "alternate"):
            self.fetched.append(attributes[LOADS[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Loads]:
    """The documentation as it is built, strictly, page by page."""
    folder = tmp_path_factory.mktemp("site")
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    pages = {}
    for path in folder.rglob("*.html"):
        pages[str(path.relative_to(folder).parent)] = page = Loads()
        page.feed(path.read_text())
    return pages


def test_the_reference_holds_every_public_name(site: dict[str, Loads]) -> None:
    anchors = site["reference"].anchors
    for name in mongoq.__all__:
        if name not in ("__version__", "connect"):
            assert f"mongoq.{name}" in anchors
    assert "mongoq.connection.connect" in anchors
    assert {f"mongoq.testing.{name}" for name in mongoq.testing.__all__} <= anchors
    assert {"mongoq.Queue.reserve", "mongoq.AsyncQueue.reserve", "mongoq.embedded.EmbeddedServer"} <= anchors


def test_a_page_asks_no_other_host_for_anything(site: dict[str, Loads]) -> None:
    assert {"tutorial", "envelope", "payloads", "spark", "reference"} <= set(site)
    for name, page in site.items():
        assert page.fetched, name
        for target in page.fetched:
            assert not urlsplit(target).netloc, f"{name}: {target}"
