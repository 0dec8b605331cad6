"""Graphs of pipelines with the numbers of their queues, for the HTTP API and as pictures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Literal, NamedTuple

from mongoq import BoundedCount, QueueInsight
from mongoq.errors import ArgumentInvalid
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.pipeline import Pipeline
from mongoq.web.readings import DONE, FAILED

NodeKind = Literal["source", "queue", "stage"]
EdgeKind = Literal["from", "to", "otherwise", "errors"]
LEAVING = (*DONE, "dead")
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

    def to_document(self) -> dict[str, Any]:
        """Return the node as values of JSON."""
        state = None if self.queue is None else self.queue.to_document()
        failed = {} if self.failed is None else {"failed": self.failed}
        return {"id": self.id, "kind": self.kind, "name": self.name, "queue": state, **failed}


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

    def to_document(self) -> dict[str, Any]:
        """Return the edge as values of JSON."""
        counted = {} if self.items is None else {"items": self.items.number, "exact": self.items.exact}
        passed = {} if self.passed is None else {"passed": self.passed}
        return {"kind": self.kind, "start": self.start, "end": self.end, **counted, **passed}


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
        nodes, edges = ([each.to_document() for each in parts] for parts in (self.nodes, self.edges))
        return {"name": self.name, "nodes": nodes, "edges": edges}


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


def make_drawing(graph: Graph, queues: Mapping[str, QueueInsight]) -> Drawing:
    """Return nodes and edges of a graph, with the states of its queues.

    An item that goes on is a move out of the stage's queue, whichever way it goes: only a stage with one way has a
    number on it. A join counts its items in another way.
    """

    def count(names: Iterable[str], events: Iterable[str]) -> int:
        return sum(queues[name].events.get(event, 0) for name in names if name in queues for event in events)

    nodes = [Node("source", source.name) for source in graph.sources]
    nodes += [Node("queue", name, queues.get(name)) for name in graph.queues]
    edges = [Edge("to", f"source:{source.name}", f"queue:{source.target}") for source in graph.sources]
    for stage in graph.stages:
        sources = tuple(stage.sources)
        nodes.append(Node("stage", stage.name, sources=sources, failed=count(sources, FAILED)))
        for name in sources:
            items = queues[name].live if name in queues else BoundedCount()
            passed = count([name], LEAVING)
            edges.append(Edge("from", f"queue:{name}", f"stage:{stage.name}", items, passed, (name,), LEAVING))
    ways = Counter(route.stage.name for route in graph.routes if route.kind != "errors")
    for route in graph.routes:
        edge = Edge(route.kind, f"stage:{route.stage.name}", f"queue:{route.queue}")
        if route.kind == "errors" or (ways[route.stage.name] == 1 and route.stage.join is None):
            sources, events = tuple(route.stage.sources), ("dead",) if route.kind == "errors" else ("move",)
            edge = replace(edge, passed=count(sources, events), queues=sources, events=events)
        edges.append(edge)
    return Drawing(graph.name, tuple(nodes), tuple(edges))


# --- pictures -----------------------------------------------------------------------------------

WIDTH, HEIGHT = 190, 56
"""Size of a node, in units of the picture."""
GAP_X, GAP_Y = 40, 54
"""Room between two nodes of a level, and between two levels."""
MARGIN = 12
LEFT = 40
"""Room on the left side, where ways back lead."""
RATES_WIDTH, RATES_HEIGHT = 120, 24
"""Size of a line of rates."""


class Rates(NamedTuple):
    """Line of the items a minute that have left a queue.

    Attributes:
        points: points of an SVG polyline; empty without two rates.
        last: last rate.
        most: largest rate.
    """

    points: str
    last: float
    most: float


def draw_rates(rates: list[float]) -> Rates:
    """Return the line of rates, the last one at the right edge."""
    if not rates:
        return Rates("", 0, 0)
    most, step = max(rates), RATES_WIDTH / max(1, len(rates) - 1)
    height = RATES_HEIGHT - 2
    points = (f"{place * step:.1f},{1 + height * (1 - rate / (most or 1)):.1f}" for place, rate in enumerate(rates))
    return Rates(" ".join(points) if len(rates) > 1 else "", rates[-1], most)


class Box(NamedTuple):
    """A node, with its left and its upper side."""

    node: Node
    x: int
    y: int


class Line(NamedTuple):
    """An edge, with the commands of its SVG path, and left side and foot of its number; the rate stands below."""

    edge: Edge
    path: str
    x: int
    y: int


class Picture(NamedTuple):
    """Boxes and lines of a pipeline, and the size of the whole."""

    boxes: list[Box]
    lines: list[Line]
    width: int
    height: int


def draw(drawing: Drawing) -> Picture:
    """Return the picture of a graph, downwards: chains are long, displays are narrow, and pages scroll downwards.

    Queues of failures lie on the right side, and ways back lead along the left one.
    """
    failures = {f"queue:{name}" for name in drawing.error_queues}
    levels = _find_levels(drawing, failures)
    boxes: dict[str, Box] = {}
    first = 0
    for is_failure in (False, True):
        used: dict[int, int] = defaultdict(partial(int, first))
        for node in sorted(drawing.nodes, key=lambda node: levels[node.id]):
            level = levels[node.id]
            if (node.id in failures) is is_failure:
                boxes[node.id] = Box(node, LEFT + used[level] * (WIDTH + GAP_X), MARGIN + level * (HEIGHT + GAP_Y))
                used[level] += 1
        first = max(used.values(), default=0)
    width = MARGIN + max(box.x for box in boxes.values()) + WIDTH
    height = MARGIN + max(box.y for box in boxes.values()) + HEIGHT
    lines = []
    for edge in drawing.edges:
        start, end = boxes[edge.start], boxes[edge.end]
        x1, y1, x2, y2 = start.x, start.y + HEIGHT // 2, end.x, end.y + HEIGHT // 2
        if edge.kind == "errors" and end.x > start.x:
            x1 += WIDTH
            bend = (x2 - x1) // 2
            path, x, y = f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}", x1 + 6, y1 - 20
        elif end.y > start.y:
            x1, y1, x2, y2 = start.x + WIDTH // 2, start.y + HEIGHT, end.x + WIDTH // 2, end.y
            bend = (y2 - y1) // 2
            path = f"M{x1} {y1} C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2}"
            x, y = (x1 + x2) // 2 + 6, y1 + bend
        else:
            side = (4 * LEFT // 5 - x1 - x2) // 6  # the middle of the curve is at a tenth of the left side
            path, x, y = f"M{x1} {y1} C{side} {y1} {side} {y2} {x2} {y2}", LEFT // 10 + 6, (y1 + y2) // 2
        lines.append(Line(edge, path, x, y))
    return Picture(list(boxes.values()), lines, width, height)


def _find_levels(drawing: Drawing, failures: set[str]) -> dict[str, int]:
    """Return the level of each node: one more than the largest of the nodes before it, loops left out.

    A queue of failures gets the level in the middle of the stages that items fail in.
    """
    after: dict[str, list[str]] = defaultdict(list)
    for edge in drawing.edges:
        if edge.end not in failures:
            after[edge.start].append(edge.end)
    levels = dict.fromkeys((node.id for node in drawing.nodes), 0)
    targets = {edge.end for edge in drawing.edges}
    starts = [node.id for node in drawing.nodes if node.id not in targets] or [node.id for node in drawing.nodes[:1]]
    # A loop with its own stack, not recursion: graphs may have long chains.
    stack: list[tuple[str, tuple[str, ...]]] = [(start, (start,)) for start in reversed(starts)]
    steps = 0
    while stack and steps < len(drawing.edges) * len(drawing.nodes) + 1:
        id, way = stack.pop()
        steps += 1
        for following in after[id]:
            if following not in way and levels[following] < len(way):
                levels[following] = len(way)
                stack.append((following, (*way, following)))
    for queue in failures:
        levels[queue] = int(median(levels[edge.start] for edge in drawing.edges if edge.end == queue))
    return levels
