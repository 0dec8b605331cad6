"""Pipelines by HTTP and as pictures: the graph, and the numbers of items on its edges."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import mongoq
from mongoq.web import create_app
from mongoq.web.pages.drawing import draw
from mongoq.web.pipelines import make_drawing
from tests.web.conftest import Api
from tests.web.test_pages import open_page

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
    return open_api(create_app(broker, pipelines=[make_pipeline(), make_pipeline(HOSTILE)]))


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
        "kind": "errors", "start": "stage:check", "end": "queue:flights.errors",
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


def test_boxes_do_not_overlap_and_edges_lead_on() -> None:
    picture = draw(make_drawing(make_pipeline().graph, {}))
    assert len({(box.x, box.y) for box in picture.boxes}) == len(picture.boxes) == 6
    places = {box.node.id: box.x for box in picture.boxes}
    assert places["source:files"] < places["queue:raw"] < places["stage:check"] < places["queue:checked"]
    back = next(line for line in picture.lines if line.edge.start == "stage:again" and line.edge.end == "queue:raw")
    assert back.y > max(box.y for box in picture.boxes)
    assert all(box.x + 190 <= picture.width and box.y + 56 <= picture.height for box in picture.boxes)


def test_a_long_chain_is_drawn() -> None:
    pipeline = mongoq.Pipeline("chain")
    for number in range(300):
        pipeline.stage(f"q{number}", to=f"q{number + 1}", name=f"s{number}")(lambda payload: payload)
    picture = draw(make_drawing(pipeline.graph, {}))
    assert len({box.x for box in picture.boxes}) == 601


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
