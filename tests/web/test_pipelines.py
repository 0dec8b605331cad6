"""Pipelines by HTTP and as pictures: the graph, and the numbers of items on its edges."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

import mongoq
from mongoq.web import create_app
from mongoq.web.pipelines import make_drawing
from tests.web.conftest import Api
from tests.web.test_pages import open_page, read_form, send_form

HOSTILE = "<script>alert(1)</script>"


def make_pipeline(name: str = "flights") -> mongoq.Pipeline:
    """A pipeline with a source, two stages, failures, and a way back."""
    pipeline = mongoq.Pipeline(name, errors="flights.errors")

    @pipeline.source(to="raw", name="files")
    def read(position: Any) -> Any:
        yield from ()

    @pipeline.stage("raw", to="checked", name="check")
    def check(flight: Any) -> Any:
        if flight is None:
            raise ValueError("no flight")
        return flight

    @pipeline.stage("checked", to="raw", name="again")
    def again(flight: Any) -> Any:
        return flight

    return pipeline


@pytest.fixture
def api(open_api: Callable[..., Api], broker: mongoq.Broker) -> Api:
    return open_api(create_app(broker, access="act", pipelines=[make_pipeline(), make_pipeline(HOSTILE)]))


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


class Clock:
    """Clock of the readings of an app, which the test moves on.

    Attributes:
        now: its time in seconds.
    """

    def __init__(self, api: Api) -> None:
        self.now = 1_000.0
        api.app.state.feed._read.__self__._reading._clock = lambda: self.now


@pytest.fixture
def run_items(uri: str, database: str, api: Api) -> Callable[[list[Any]], None]:
    """Runs items through a stage with one further run, and lets a minute pass for the readings."""
    pipeline = mongoq.Pipeline("flights", errors="flights.errors", outputs=["checked"])

    @pipeline.stage("raw", to="checked", name="check", max_retries=1, retry=mongoq.Fixed(0))
    def check(flight: Any) -> Any:
        if flight is None:
            raise ValueError("no flight")
        return flight

    clock = Clock(api)

    def run(payloads: list[Any]) -> None:
        open_page(api, "/")
        with mongoq.connect(uri, database=database) as broker:  # its end writes the counters
            broker.queue("raw").push_many(payloads)
            pipeline.drain(broker)
        clock.now += 120
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
    assert "4 failed in the last hour" in page
    graph = api.get("/api/pipeline", name="flights").json()
    assert {node["name"]: node.get("failed") for node in graph["nodes"] if node["kind"] == "stage"} == {
        "check": 4, "again": 0,
    }  # fmt: skip
    passed = {(edge["start"], edge["end"]): edge.get("passed") for edge in graph["edges"]}
    assert passed["stage:check", "queue:flights.errors"] == 2
    assert passed["source:files", "queue:raw"] is None


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


def test_ways_that_counters_cannot_tell_apart_have_no_numbers() -> None:
    pipeline = mongoq.Pipeline("split", errors=None, outputs=["odd", "even"])
    pipeline.stage("raw", to=["odd", "even"], name="sort")(lambda payload: payload)
    edges = [edge for edge in make_drawing(pipeline.graph, {}).edges if edge.kind == "to"]
    assert [(edge.end, edge.passed) for edge in edges] == [("queue:odd", None), ("queue:even", None)]


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


def test_an_unknown_pipeline_is_not_found(api: Api) -> None:
    assert api.get("/api/pipeline", name="none").status_code == 404
    assert api.request("GET", "/pipeline?name=none", headers={"accept": "text/html"}).status_code == 404


@pytest.mark.parametrize("pipelines", [[1], [make_pipeline(), make_pipeline()]], ids=["no pipeline", "the same name"])
def test_pipelines_that_cannot_be_shown_are_an_error(broker: mongoq.Broker, pipelines: Any) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match="pipelines"):
        create_app(broker, pipelines=pipelines)
    with pytest.raises(mongoq.GraphInvalid):
        create_app(broker, pipelines=[mongoq.Pipeline("empty")])


def test_without_pipelines_the_page_says_how_to_show_one(open_api: Callable[..., Api], broker: mongoq.Broker) -> None:
    assert "--pipeline app:pipeline" in open_page(open_api(create_app(broker)), "/pipelines")
