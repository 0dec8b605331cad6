"""Drawing: places of nodes and lines of edges for the picture of a pipeline."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from mongoq.web.pipelines import Drawing, Edge, Node

WIDTH, HEIGHT = 190, 56
"""Size of a node, in units of the picture."""
GAP_X, GAP_Y = 90, 26
"""Room between two columns, and between two nodes of a column."""
MARGIN = 12
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
        x: middle of the line, where its number stands.
        y: the same, downwards.
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
    """Return the picture of a graph, from left to right; queues of failures lie below, and ways back lead below."""
    failures = {f"queue:{name}" for name in drawing.error_queues}
    columns = _find_columns(drawing, failures)
    rows: dict[int, int] = defaultdict(int)
    boxes: dict[str, Box] = {}
    for node in sorted(drawing.nodes, key=lambda node: columns[node.id]):
        if node.id not in failures:
            boxes[node.id] = _place(node, columns[node.id], rows)
    depth = max(rows.values(), default=0)
    rows = defaultdict(lambda: depth + 1)
    for node in drawing.nodes:
        if node.id in failures:
            boxes[node.id] = _place(node, columns[node.id], rows)
    width = MARGIN + max(box.x for box in boxes.values()) + WIDTH
    height = 2 * GAP_Y + max(box.y for box in boxes.values()) + HEIGHT
    lines = tuple(_make_line(edge, boxes[edge.start], boxes[edge.end], height) for edge in drawing.edges)
    return Picture(tuple(boxes.values()), lines, width, height)


def _place(node: Node, column: int, rows: dict[int, int]) -> Box:
    """Return the box of a node in the next row of a column."""
    box = Box(node, MARGIN + column * (WIDTH + GAP_X), MARGIN + rows[column] * (HEIGHT + GAP_Y))
    rows[column] += 1
    return box


def _find_columns(drawing: Drawing, failures: set[str]) -> dict[str, int]:
    """Return the column of each node: one more than the largest of the nodes before it, loops left out.

    A queue of failures gets the column in the middle of the stages that items fail in.
    """
    after: dict[str, list[str]] = defaultdict(list)
    for edge in drawing.edges:
        if edge.end not in failures:
            after[edge.start].append(edge.end)
    columns = dict.fromkeys((node.id for node in drawing.nodes), 0)
    targets = {edge.end for edge in drawing.edges}
    starts = [node.id for node in drawing.nodes if node.id not in targets] or [node.id for node in drawing.nodes[:1]]
    # A loop with its own stack, not recursion: graphs may have long chains.
    stack: list[tuple[str, tuple[str, ...]]] = [(start, (start,)) for start in reversed(starts)]
    steps = 0
    while stack and steps < len(drawing.edges) * len(drawing.nodes) + 1:
        id, way = stack.pop()
        steps += 1
        for following in after[id]:
            if following not in way and columns[following] < len(way):
                columns[following] = len(way)
                stack.append((following, (*way, following)))
    for queue in failures:
        columns[queue] = int(median(columns[edge.start] for edge in drawing.edges if edge.end == queue))
    return columns


def _make_line(edge: Edge, start: Box, end: Box, height: int) -> Line:
    """Return the path from a box to another one."""
    x1, y1 = start.x + WIDTH, start.y + HEIGHT // 2
    x2, y2 = end.x, end.y + HEIGHT // 2
    if edge.kind == "errors" and end.y > start.y:
        x1, y1, x2, y2 = start.x + WIDTH // 2, start.y + HEIGHT, end.x + WIDTH // 2, end.y
        bend = (y2 - y1) // 2
        return Line(edge, f"M{x1} {y1} C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2}", (x1 + x2) // 2, (y1 + y2) // 2)
    if x2 > x1:
        bend = (x2 - x1) // 2
        return Line(edge, f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}", (x1 + x2) // 2, (y1 + y2) // 2)
    below = height - GAP_Y // 2
    path = f"M{x1} {y1} C{x1 + GAP_X} {y1} {x1 + GAP_X} {below} {x1} {below} L{x2} {below} C{x2 - GAP_X} {below} "
    return Line(edge, f"{path}{x2 - GAP_X} {y2} {x2} {y2}", (x1 + x2) // 2, below)
