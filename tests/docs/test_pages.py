"""What the pages show is run, what they name exists, and their links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import mongoq
from tests.docs import blocks

ROOT = Path(__file__).parents[2]
README_URI = "mongodb://localhost:27017/app"
RUN = (
    "batch-stages",
    "batches",
    "claims",
    "dead-letters",
    "delay-and-schedule",
    "exactly-once",
    "forks",
    "group-commit",
    "health",
    "history-and-replay",
    "joins",
    "keys",
    "limits",
    "logs",
    "monitoring",
    "operating",
    "outbox",
    "pipelines",
    "recipes",
    "retries",
    "routing",
    "schedules",
    "sequences",
    "settings",
    "sources",
    "stage-errors",
    "telemetry",
    "testing",
    "too-early-too-late",
    "topics",
    "trails",
    "tutorial",
    "waiting",
    "workers",
)
"""Pages of ``docs`` whose blocks are run, but for those that need Spark."""
FIRST = ("README.md", "docs/index.md")
ELSEWHERE = {
    "frame-stages",
    "http-api",
    "spark",
    "spark-pipelines",
    "spark-reading",
    "spark-replay",
    "spark-streams",
    "spark-writing",
}
"""Pages of ``docs`` with tests of their own, or with Spark in each block."""
REAL = ("exactly-once", "tutorial")
"""Pages that start the server that they show: one because of its parameters."""
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")


@pytest.mark.parametrize("page", FIRST)
def test_a_first_page_runs(page: str, uri: str, database: str) -> None:
    own = urlsplit(uri)._replace(path=f"/{database}").geturl()
    blocks.run(page, spark=False, replacements={README_URI: own})


@pytest.mark.parametrize("page", RUN)
def test_a_page_runs(page: str, request: pytest.FixtureRequest) -> None:
    if page not in REAL:
        request.getfixturevalue("shared_server")
    blocks.run(f"docs/{page}.md", spark=False)


def test_every_page_with_code_is_run() -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md") if "\n```python\n" in path.read_text()}
    assert pages == {"index", *RUN} | ELSEWHERE


@pytest.mark.spark
@pytest.mark.prove
@pytest.mark.parametrize("page", ["docs/spark-reading.md", "docs/tutorial.md"])
def test_a_page_runs_with_spark(page: str) -> None:
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    run = subprocess.run(
        [sys.executable, "-m", "tests.docs.blocks", page],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]


def test_what_is_run_is_not_little() -> None:
    """A fence that the expression does not find would be a block that nobody runs."""
    for page in (*FIRST, *(f"docs/{name}.md" for name in RUN)):
        runnable = list(blocks.blocks(page))
        text = (ROOT / page).read_text()
        assert len(runnable) == len(re.findall(r"^```python$", text, re.MULTILINE)) >= 2, page
        assert sum(block.output is not None for block in runnable) >= len(runnable) // 2, page


def test_links_outside_the_site_lead_somewhere() -> None:
    for page in ("README.md", "CHANGELOG.md"):
        for match in LINK.finditer((ROOT / page).read_text()):
            target = urlsplit(match["target"])
            if not target.scheme:
                path = ROOT / target.path
                assert path.exists(), f"{page}: {target.path}"
                heading = f"## {target.fragment.replace('-', ' ')}"
                assert not target.fragment or heading in path.read_text().lower(), f"{page}: {match['target']}"


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    for name in mongoq.__all__:
        assert re.search(rf"(^::: mongoq\.|heading: mongoq\.|`mongoq\.){name}\b", text, re.MULTILINE), name


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")):
        named = set(re.findall(r"\bmake ([a-z-]+)\b(?=[`\n)])", page.read_text()))
        assert named <= targets, page.name
