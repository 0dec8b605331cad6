"""The benchmark of pages, in small: that each page and read is measured, and that an open page is renewed."""

from pathlib import Path

import pytest

from tests.bench.running import ran

pytestmark = [pytest.mark.bench, pytest.mark.prove]


def test_each_page_and_read_is_measured(tmp_path: Path) -> None:
    options = ["--items", "2000", "--queues", "5", "--letters", "200", "--seconds", "8"]
    result = ran(tmp_path / "pages.json", "pages", *options)
    measured = {each["command"]: each for each in result["costs"]}
    for page in ("/", "/queue?name=orders", "/letters?queue=orders", "/workers", "/api/queues", "/api/health"):
        assert measured[f"GET {page}"]["status"] == measured[f"GET {page}, again"]["status"] == 200
    # A page of something that the benchmark does not store is not found.
    assert {each["status"] for each in measured.values()} <= {200, 404}, measured
    assert measured["GET /api/letters/groups?queue=orders"]["documents_examined"] >= 200
    assert measured["GET /item?id=KNOWN"]["documents_examined"] <= 5
    opened = {each["page"]: each for each in result["open"]}
    assert opened["none"]["loads"] == 0
    assert all(each["loads"] >= 1 for page, each in opened.items() if page != "none")
