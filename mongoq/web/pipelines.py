"""Graphs of pipelines with the numbers of their queues, for the HTTP API and for drawing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mongoq.errors import ArgumentInvalid
from mongoq.pipeline.graph.graph import Graph, Route, Stage
from mongoq.pipeline.pipeline import Pipeline
from mongoq.protocol.history.query import BoundedCount
from mongoq.protocol.insight import QueueInsight, read_queues
from mongoq.web.client import BrokerClient
from mongoq.web.readings import DONE, FAILED

NodeKind = Literal["source", "queue", "stage"]
EdgeKind = Literal["from", "to", "otherwise", "errors"]
NO_ITEMS = BoundedCount()
LEFT = (*DONE, "dead")
"""Events by which an item leaves a queue."""


@dataclass(frozen=True, slots=True)
class Node:
    """A source, a queue or a stage of a pipeline.

    Attributes:
        kind: what it is.
        name: its name.
        queue: state of a queue; ``None`` for a queue that no caller has used yet, and for sources and stages.
        sources: names of the queues that a stage takes items from.
        failed: of a stage the runs that have failed since its queues were made; ``None`` for others.
    """

    kind: NodeKind
    name: str
    queue: QueueInsight | None = None
    sources: tuple[str, ...] = ()
    failed: int | None = None

    @property
    def id(self) -> str:
        """Name that no other node of the graph has."""
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Edge:
    """A way of items between a queue and a stage, or from a source to a queue.

    Attributes:
        kind: ``"from"`` a queue to a stage, or how items leave: ``"to"``, ``"otherwise"`` or ``"errors"``.
        start: id of the node that items come from.
        end: id of the node that they go to.
        items: of ``"from"`` the items that wait for the stage or are with it; ``None`` for the others.
        passed: items that have gone this way since the queues were made; ``None`` where the counters of the queues
            cannot tell one way from another one.
        queues: queues whose counters count the items that go this way.
        events: events of these queues that count them.
    """

    kind: EdgeKind
    start: str
    end: str
    items: BoundedCount | None = None
    passed: int | None = None
    queues: tuple[str, ...] = ()
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawing:
    """Nodes and edges of a pipeline, with their numbers."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    @property
    def error_queues(self) -> set[str]:
        """Names of the queues that only failed items come to, and that no stage reads."""
        others = {edge.end for edge in self.edges if edge.kind != "errors"} | {edge.start for edge in self.edges}
        ends = {edge.end for edge in self.edges if edge.kind == "errors"} - others
        return {node.name for node in self.nodes if node.id in ends}

    def to_document(self) -> dict[str, Any]:
        """Return the graph as values of JSON."""
        return {
            "name": self.name,
            "nodes": list(map(_node_document, self.nodes)),
            "edges": list(map(_edge_document, self.edges)),
        }


def check_pipelines(pipelines: Iterable[Any]) -> dict[str, Pipeline]:
    """Return the pipelines of an app by their names.

    Raises:
        ArgumentInvalid: one is no pipeline, or two have the same name.
        GraphInvalid: one has faults.
    """
    named: dict[str, Pipeline] = {}
    for each in pipelines:
        if not isinstance(each, Pipeline):
            raise ArgumentInvalid("pipelines", f"a list of Pipeline, not with a {type(each).__name__}")
        each.check()
        if each.name in named:
            raise ArgumentInvalid("pipelines", f"two have the name {each.name!r}")
        named[each.name] = each
    return named


def find_error_queues(pipelines: Iterable[Pipeline]) -> frozenset[str]:
    """Return the names of the queues that only failed items of pipelines come to."""
    return frozenset(name for each in pipelines for name in make_drawing(each.graph, {}).error_queues)


async def read_drawing(client: BrokerClient, pipeline: Pipeline) -> Drawing:
    """Return the graph of a pipeline with the state of its queues, from one bounded read of them."""
    graph = pipeline.graph
    # All queues, because a named one that no caller has used yet would be an error.
    found: list[QueueInsight] = await client.read(read_queues)
    return make_drawing(graph, {queue.name: queue for queue in found})


def make_drawing(graph: Graph, queues: Mapping[str, QueueInsight]) -> Drawing:
    """Return nodes and edges of a graph, with the states of its queues."""
    nodes = [Node("source", source.name) for source in graph.sources]
    nodes += [Node("queue", name, queues.get(name)) for name in graph.queues]
    nodes += [_make_stage(stage, queues) for stage in graph.stages]
    edges = [Edge("to", f"source:{source.name}", f"queue:{source.target}") for source in graph.sources]
    for stage in graph.stages:
        edges += [_make_inlet(name, stage.name, queues) for name in stage.sources]
    ways = Counter(route.stage.name for route in graph.routes if route.kind != "errors")
    edges += [_make_outlet(route, queues, is_only=ways[route.stage.name] == 1) for route in graph.routes]
    return Drawing(graph.name, tuple(nodes), tuple(edges))


def _make_stage(stage: Stage, queues: Mapping[str, QueueInsight]) -> Node:
    sources = tuple(stage.sources)
    return Node("stage", stage.name, sources=sources, failed=_count_events(queues, sources, FAILED))


def _make_inlet(queue: str, stage: str, queues: Mapping[str, QueueInsight]) -> Edge:
    """Return the edge from a queue to a stage that takes its items."""
    items = queues[queue].live if queue in queues else NO_ITEMS
    passed = _count_events(queues, (queue,), LEFT)
    return Edge("from", f"queue:{queue}", f"stage:{stage}", items, passed, (queue,), LEFT)


def _make_outlet(route: Route, queues: Mapping[str, QueueInsight], *, is_only: bool) -> Edge:
    """Return the edge from a stage to a queue.

    An item that goes on is a move out of the stage's queue, whichever way it goes: only a stage with one way has a
    number on it. A join counts its items in another way.
    """
    start, end = f"stage:{route.stage.name}", f"queue:{route.queue}"
    is_known = route.kind == "errors" or (is_only and route.stage.join is None)
    if not is_known:
        return Edge(route.kind, start, end)
    sources, events = tuple(route.stage.sources), ("dead",) if route.kind == "errors" else ("move",)
    return Edge(route.kind, start, end, None, _count_events(queues, sources, events), sources, events)


def _count_events(queues: Mapping[str, QueueInsight], names: Iterable[str], events: Iterable[str]) -> int:
    counted = [queues[name].events for name in names if name in queues]
    return sum(each.get(event, 0) for each in counted for event in events)


def _node_document(node: Node) -> dict[str, Any]:
    state = None if node.queue is None else node.queue.to_document()
    failed = {} if node.failed is None else {"failed": node.failed}
    return {"id": node.id, "kind": node.kind, "name": node.name, "queue": state, **failed}


def _edge_document(edge: Edge) -> dict[str, Any]:
    counted = {} if edge.items is None else {"items": edge.items.number, "exact": edge.items.exact}
    passed = {} if edge.passed is None else {"passed": edge.passed}
    return {"kind": edge.kind, "start": edge.start, "end": edge.end, **counted, **passed}
