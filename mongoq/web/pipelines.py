"""Graphs of pipelines with the numbers of their queues, for the HTTP API and for drawing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mongoq.errors import ArgumentInvalid
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.pipeline import Pipeline
from mongoq.protocol.history.pages import BoundedCount
from mongoq.protocol.insight import QueueInsight, read_queues
from mongoq.web.client import BrokerClient

NodeKind = Literal["source", "queue", "stage"]
EdgeKind = Literal["from", "to", "otherwise", "errors"]
NO_ITEMS = BoundedCount()


@dataclass(frozen=True, slots=True)
class Node:
    """A source, a queue or a stage of a pipeline.

    Attributes:
        kind: what it is.
        name: its name.
        queue: state of a queue; ``None`` for a queue that no caller has used yet, and for sources and stages.
    """

    kind: NodeKind
    name: str
    queue: QueueInsight | None = None

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
        passed: of ``"from"`` the items that have left the queue since it was made; ``None`` for the others.
    """

    kind: EdgeKind
    start: str
    end: str
    items: BoundedCount | None = None
    passed: int | None = None


@dataclass(frozen=True, slots=True)
class Drawing:
    """Nodes and edges of a pipeline, with their numbers."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

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
    nodes += [Node("stage", stage.name) for stage in graph.stages]
    edges = [Edge("to", f"source:{source.name}", f"queue:{source.target}") for source in graph.sources]
    for stage in graph.stages:
        edges += [_make_inlet(name, stage.name, queues.get(name)) for name in stage.sources]
    edges += [Edge(route.kind, f"stage:{route.stage.name}", f"queue:{route.queue}") for route in graph.routes]
    return Drawing(graph.name, tuple(nodes), tuple(edges))


def _make_inlet(queue: str, stage: str, state: QueueInsight | None) -> Edge:
    """Return the edge from a queue to a stage that takes its items."""
    items = NO_ITEMS if state is None else state.live
    events = {} if state is None else state.events
    passed = sum(events.get(name, 0) for name in ("get", "commit", "move", "dead"))
    return Edge("from", f"queue:{queue}", f"stage:{stage}", items, passed)


def _node_document(node: Node) -> dict[str, Any]:
    state = None if node.queue is None else node.queue.to_document()
    return {"id": node.id, "kind": node.kind, "name": node.name, "queue": state}


def _edge_document(edge: Edge) -> dict[str, Any]:
    counted = {} if edge.items is None else {"items": edge.items.number, "exact": edge.items.exact}
    passed = {} if edge.passed is None else {"passed": edge.passed}
    return {"kind": edge.kind, "start": edge.start, "end": edge.end, **counted, **passed}
