"""Drawing: places of nodes and lines of edges for the picture of a pipeline."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from mongoq.web.pipelines import Drawing, Edge, Node

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
