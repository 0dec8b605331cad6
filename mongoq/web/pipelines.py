"""Graphs of pipelines with the numbers of their queues, for the HTTP API and for drawing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from mongoq.errors import ArgumentInvalid
from mongoq.pipeline.graph.graph import Graph, Route, Stage
from mongoq.pipeline.pipeline import Pipeline
from mongoq.protocol.history.query import BoundedCount
from mongoq.protocol.insight import QueueInsight
from mongoq.web.readings import DONE, FAILED

NodeKind = Literal["source", "queue", "stage"]
EdgeKind = Literal["from", "to", "otherwise", "errors"]
NO_ITEMS = BoundedCount()
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
    passed = _count_events(queues, (queue,), LEAVING)
    return Edge("from", f"queue:{queue}", f"stage:{stage}", items, passed, (queue,), LEAVING)


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


# --- pictures -----------------------------------------------------------------------------------

WIDTH, HEIGHT = 190, 56
"""Size of a node, in units of the picture."""
GAP_X, GAP_Y = 40, 54
"""Room between two nodes of a level, and between two levels."""
MARGIN = 12
LEFT = 40
"""Room on the left side, where ways back lead."""
LABEL_CHARACTERS = 24
"""Characters of a name in a node, at most; the whole name is its title."""


RATES_WIDTH, RATES_HEIGHT = 120, 24
"""Size of a line of rates."""


@dataclass(frozen=True, slots=True)
class Rates:
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


@dataclass(frozen=True, slots=True)
class Box:
    """A node with its place.

    Attributes:
        node: the node.
        x: left side.
        y: upper side.
    """

    node: Node
    x: int
    y: int

    @property
    def label(self) -> str:
        """Name of the node, shortened."""
        name = self.node.name
        return name if len(name) <= LABEL_CHARACTERS else f"{name[: LABEL_CHARACTERS - 1]}…"


@dataclass(frozen=True, slots=True)
class Line:
    """An edge with its path.

    Attributes:
        edge: the edge.
        path: commands of an SVG path.
        x: left side of its number.
        y: foot of its number; the rate stands below.
    """

    edge: Edge
    path: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Picture:
    """Boxes and lines of a pipeline, and the size of the whole."""

    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    width: int
    height: int


def draw(drawing: Drawing) -> Picture:
    """Return the picture of a graph, downwards: chains are long, displays are narrow, and pages scroll downwards.

    Queues of failures lie on the right side, and ways back lead along the left one.
    """
    failures = {f"queue:{name}" for name in drawing.error_queues}
    levels = _find_levels(drawing, failures)
    used: dict[int, int] = defaultdict(int)
    boxes: dict[str, Box] = {}
    for node in sorted(drawing.nodes, key=lambda node: levels[node.id]):
        if node.id not in failures:
            boxes[node.id] = _place(node, levels[node.id], used)
    most = max(used.values(), default=0)
    used = defaultdict(lambda: most)
    for node in drawing.nodes:
        if node.id in failures:
            boxes[node.id] = _place(node, levels[node.id], used)
    width = MARGIN + max(box.x for box in boxes.values()) + WIDTH
    height = MARGIN + max(box.y for box in boxes.values()) + HEIGHT
    lines = tuple(_make_line(edge, boxes[edge.start], boxes[edge.end]) for edge in drawing.edges)
    return Picture(tuple(boxes.values()), lines, width, height)


def _place(node: Node, level: int, used: dict[int, int]) -> Box:
    """Return the box of a node in the next place of a level."""
    box = Box(node, LEFT + used[level] * (WIDTH + GAP_X), MARGIN + level * (HEIGHT + GAP_Y))
    used[level] += 1
    return box


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


def _make_line(edge: Edge, start: Box, end: Box) -> Line:
    """Return the path from a box to another one."""
    if edge.kind == "errors" and end.x > start.x:
        x1, y1, x2, y2 = start.x + WIDTH, start.y + HEIGHT // 2, end.x, end.y + HEIGHT // 2
        bend = (x2 - x1) // 2
        return Line(edge, f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}", x1 + 6, y1 - 20)
    if end.y > start.y:
        x1, y1, x2, y2 = start.x + WIDTH // 2, start.y + HEIGHT, end.x + WIDTH // 2, end.y
        bend = (y2 - y1) // 2
        return Line(edge, f"M{x1} {y1} C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2}", (x1 + x2) // 2 + 6, y1 + bend)
    x1, y1, x2, y2 = start.x, start.y + HEIGHT // 2, end.x, end.y + HEIGHT // 2
    side = (4 * LEFT // 5 - x1 - x2) // 6  # a curve with both handles here has its middle at a tenth of the left side
    return Line(edge, f"M{x1} {y1} C{side} {y1} {side} {y2} {x2} {y2}", LEFT // 10 + 6, (y1 + y2) // 2)
