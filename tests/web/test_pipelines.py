"""Pipelines by HTTP and as pictures: the graph, and the numbers of items on its edges."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from html import unescape
from typing import Any

import pytest

import mongoq
from tests.web.conftest import HTML, Api, make_pipeline, open_page, read_form, send_form

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def api(open_app: Callable[..., Api]) -> Api:
    return open_app(access="act", pipelines=[make_pipeline(), make_pipeline(HOSTILE)])


def test_edges_have_the_numbers_of_their_items(api: Api, broker: mongoq.Broker) -> None:
    assert api.get("/api/pipelines").json() == {"pipelines": ["flights", HOSTILE]}
    broker.queue("raw").push_many([1, 2, 3])
    with broker.queue("raw").reserved() as item:
        assert item is not None
        graph = api.get("/api/pipeline", name="flights").json()
    edges = {(edge["start"], edge["end"]): edge for edge in graph["edges"]}
    assert edges["queue:raw", "stage:check"]["items"] == 3
    assert edges["queue:checked", "stage:again"]["items"] == 0
    assert edges["stage:check", "queue:flights.errors"] == {
        "kind": "errors", "start": "stage:check", "end": "queue:flights.errors", "passed": 0,
    }  # fmt: skip
    assert edges["source:files", "queue:raw"]["kind"] == "to"
    queues = {node["name"]: node["queue"] for node in graph["nodes"] if node["kind"] == "queue"}
    assert (queues["raw"]["ready"], queues["raw"]["reserved"], queues["checked"]) == (2, 1, None)


def test_the_picture_shows_all_nodes_and_numbers(api: Api, broker: mongoq.Broker) -> None:
    broker.queue("raw").push_many(range(7))
    assert 'href="/pipeline?name=flights"' in open_page(api, "/pipelines")
    page = open_page(api, "/pipeline", name="flights")
    assert set(re.findall(r"<title>(\w+ [\w.]+)</title>", page)) == {
        "source files", "queue raw", "queue checked", "queue flights.errors", "stage check", "stage again",
    }  # fmt: skip
    assert re.search(r'<text class="number"[^>]*>7</text>', page)
    assert "<script>alert" not in open_page(api, "/pipeline", name=HOSTILE)


@pytest.fixture
def run_items(
    uri: str, database: str, api: Api, freeze_clock: Callable[[Api], Callable[[float], None]]
) -> Callable[[list[Any]], None]:
    """Runs items through a stage with one further run, and lets a minute pass for the readings."""
    pipeline = mongoq.Pipeline("flights", errors="flights.errors", outputs=["checked"])

    @pipeline.stage("raw", to="checked", name="check", max_retries=1, retry=mongoq.Fixed(0))
    def check(flight: Any) -> Any:
        if flight is None:
            raise ValueError("no flight")
        return flight

    pass_time = freeze_clock(api)

    def run(payloads: list[Any]) -> None:
        open_page(api, "/")
        with mongoq.connect(uri, database=database) as broker:  # its end writes the counters
            broker.queue("raw").push_many(payloads)
            pipeline.drain(broker)
        pass_time(120)
        open_page(api, "/")

    return run


def read_rows(page: str) -> dict[str, list[str]]:
    """Return the cells of the tables of a page, by the first two cells of a row."""
    rows: dict[str, list[str]] = {}
    for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL):
        cells = [
            " ".join(unescape(re.sub(r"<[^>]+>", "", cell)).split())
            for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL)
        ]
        rows[" ".join(cells[:2])] = cells[2:]
    return rows


def test_stages_and_ways_have_rates_and_failures(api: Api, run_items: Callable[[list[Any]], None]) -> None:
    assert "Rates come when" in open_page(api, "/pipeline", name="flights")
    run_items([1, 2, 3, 4, None, None])
    page = open_page(api, "/pipeline", name="flights")
    rows = read_rows(page)
    assert "Rates come when" not in page
    # Two items have failed twice each within two minutes, and four went on.
    assert rows["check raw"] == ["2", "4", "2", "4", "4"]
    assert rows["queue:raw stage:check"] == ["from", "0", "3", "6", "6"]
    assert rows["stage:check queue:checked"] == ["to", "", "2", "4", "4"]
    assert rows["stage:check queue:flights.errors"] == ["errors", "", "1", "2", "2"]
    assert rows["source:files queue:raw"] == ["to", "", "", "", ""]
    assert re.search(r">4 failed since \d\d:\d\d UTC<", page)
    graph = api.get("/api/pipeline", name="flights").json()
    assert {node["name"]: node.get("failed") for node in graph["nodes"] if node["kind"] == "stage"} == {
        "check": 4, "again": 0,
    }  # fmt: skip
    passed = {(edge["start"], edge["end"]): edge.get("passed") for edge in graph["edges"]}
    assert passed["stage:check", "queue:flights.errors"] == 2
    assert passed["source:files", "queue:raw"] is None


def test_numbers_say_since_when_they_count(
    api: Api, run_items: Callable[[list[Any]], None], open_app: Callable[..., Api], freeze_clock: Any
) -> None:
    run_items([1, None, None])
    later = open_app(pipelines=[make_pipeline()])
    pass_time = freeze_clock(later)
    ages = []
    for seconds in (120, 120, 3_600, 60):
        page = open_page(later, "/pipeline", name="flights")
        [stages, ways] = re.findall(r"<thead>(.*?)</thead>", page)
        [start] = re.findall(r'>failed since <time datetime="([^"]+)"', stages)
        assert f'>passed since <time datetime="{start}"' in ways
        ages.append(round((datetime.now(UTC) - datetime.fromisoformat(start)).total_seconds() / 120))
        # The failures before it began to look are not "0 in the last hour".
        assert ("last hour" in page, "last hour" in open_page(later, "/")) == (False, False)
        pass_time(seconds)
    assert read_rows(page)["check raw"] == ["0", "0", "0", "0", "4"]
    assert ages == [0, 1, 2, 30]  # of the sample that they count from, in two minutes each


def test_an_item_shows_its_way_through_the_stages(api: Api, broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("ways", trail=True, outputs=["checked"])
    pipeline.stage("raw", to="checked", name="check")(lambda payload: payload)
    broker.queue("raw").push(1)
    pipeline.drain(broker)
    [item] = broker.queue("checked").peek(9)
    page = open_page(api, "/item", id=str(item.id))
    way = page[page.index("<h2>Way</h2>") :].partition("</ol>")[0]
    assert " ".join(re.sub(r"<[^>]+>", " ", way).split()).startswith("Way raw check moved 20")
    assert re.search(r'<time datetime="20[^"]+Z">', way)


def test_an_error_queue_leads_to_its_letters_and_needs_no_consumer(
    api: Api, broker: mongoq.Broker, run_items: Callable[[list[Any]], None]
) -> None:
    run_items([1, None, None])
    address = "/letters?queue=flights.errors&amp;exact=true"
    for path in ("/", "/pipeline?name=flights"):
        assert f'href="{address}"' in open_page(api, path), path
    overview, queue = open_page(api, "/"), open_page(api, "/queue", name="flights.errors")
    for page in (overview[overview.index("<bdi>flights.errors<") :].partition("</tr>")[0], queue):
        assert ("failed items" in page, "no consumer" in page) == (True, False)
    page = open_page(api, unescape(address))
    assert ("ValueError" in page, "Dead letters in <bdi>flights.errors<" in page) == (True, True)
    fields = {
        **read_form(page[page.index("<tbody>") :].partition("</form>")[0]), "action": "replay",
    }  # fmt: skip
    asked = send_form(api, fields)
    assert "Send 2 letters back to their queues, flights.errors?" in asked.text
    assert f'href="{address}"' in asked.text
    assert "2 letters of flights.errors went back." in send_form(api, read_form(asked.text)).text
    assert (broker.queue("raw").size(), broker.queue("flights.errors").size()) == (2, 0)


def test_ways_that_counters_cannot_tell_apart_have_no_numbers(open_app: Callable[..., Api]) -> None:
    split = mongoq.Pipeline("split", errors=None, outputs=["odd", "even"])
    split.stage("raw", to=["odd", "even"], name="sort")(lambda payload: payload)
    graph = open_app(pipelines=[split]).get("/api/pipeline", name="split").json()
    ways = {edge["end"]: edge.get("passed") for edge in graph["edges"] if edge["kind"] == "to"}
    assert ways == {"queue:odd": None, "queue:even": None}


def test_pipelines_that_are_not_there_or_cannot_be_shown_are_an_error(open_app: Callable[..., Api], api: Api) -> None:
    assert api.get("/api/pipeline", name="none").status_code == 404
    assert api.request("GET", "/pipeline?name=none", headers=HTML).status_code == 404
    assert "--pipeline app:pipeline" in open_page(open_app(), "/pipelines")
    for pipelines in ([1], [make_pipeline(), make_pipeline()]):
        with pytest.raises(mongoq.ArgumentInvalid, match="pipelines"):
            open_app(pipelines=pipelines)
    with pytest.raises(mongoq.GraphInvalid):
        open_app(pipelines=[mongoq.Pipeline("empty")])
