"""Waterfall: the spans of one trace as an SVG picture, with a bar on a common axis of time for each."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from xml.sax.saxutils import escape

__all__ = ["TraceSpan", "draw", "read_spans"]

WIDTH, MARGIN, NAMES = 760, 20, 250
"""Pixels: the picture, its margin, and the column of names."""
ROW, HEAD, FOOT = 27, 76, 20
"""Pixels: the height of a row, of what is above the rows, and of what is below them."""
BAR, MIN_BAR = 15, 3
"""Pixels: the height of a bar, and the length of the shortest one."""
INDENT, MAX_DEPTH = 14, 8
MAX_NAME = 34
"""Characters of a name, at most; a longer one is cut."""
NOTE_LEFT_FROM = WIDTH * 0.75
"""Pixels from which a bar has its note on its left."""
TICKS = 5
"""Intervals of the axis, about."""
COLOURS = 4
"""Colours of services; more services share them."""
UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML cannot hold."""

STYLE = """
    .panel { fill: #f7f9fa; }
    .grid { stroke: #cfd8dc; stroke-width: 1; }
    .name { fill: #102027; font-size: 13px; }
    .note { fill: #4a5860; font-size: 12px; }
    .end { text-anchor: end; }
    .middle { text-anchor: middle; }
    .failed { fill: #b3261e; font-size: 12px; }
    .s0 { fill: #546e7a; } .s1 { fill: #00796b; } .s2 { fill: #1565c0; } .s3 { fill: #b45309; }
    .error { stroke: #b3261e; stroke-width: 2; }
    @media (prefers-color-scheme: dark) {
      .panel { fill: #1b2327; }
      .grid { stroke: #37474f; }
      .name { fill: #eceff1; }
      .note { fill: #b0bec5; }
      .failed { fill: #ff8a80; }
      .s0 { fill: #90a4ae; } .s1 { fill: #4db6ac; } .s2 { fill: #64b5f6; } .s3 { fill: #ffb74d; }
      .error { stroke: #ff8a80; }
    }
"""


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A span as the picture needs it; times are seconds since 1970.

    Attributes:
        id: id of the span.
        parent: id of its parent; ``None`` for the first span of a trace.
        name: name of the span.
        service: service that has made it.
        start: when it began.
        end: when it ended.
        error: type of its error, if it has failed.
    """

    id: str
    parent: str | None
    name: str
    service: str
    start: float
    end: float
    error: str | None = None

    @classmethod
    def of(cls, exported: Mapping[str, Any]) -> TraceSpan:
        """Return a span of what ``ReadableSpan.to_json`` has written."""
        return cls(
            id=exported["context"]["span_id"],
            parent=exported["parent_id"],
            name=exported["name"],
            service=str(exported["resource"]["attributes"].get("service.name", "")),
            start=datetime.fromisoformat(exported["start_time"]).timestamp(),
            end=datetime.fromisoformat(exported["end_time"]).timestamp(),
            error=_error_of(exported),
        )


def _error_of(exported: Mapping[str, Any]) -> str | None:
    """Return the type of a span's error; libraries write it into the attribute, and the SDK into an event."""
    if exported["status"]["status_code"] != "ERROR":
        return None
    raised = [event["attributes"].get("exception.type") for event in exported["events"]]
    return str(exported["attributes"].get("error.type") or next(filter(None, reversed(raised)), "error"))


def read_spans(lines: Iterable[str], trace_id: str) -> list[TraceSpan]:
    """Return the spans of one trace, of lines of JSON."""
    exported = map(json.loads, lines)
    return [TraceSpan.of(span) for span in exported if span["context"]["trace_id"] == trace_id]


def draw(spans: Sequence[TraceSpan], title: str) -> str:
    """Return the picture of spans, at least one: parents above their children, in the order of their beginnings.

    A span whose parent is not among them stands at the margin, as the first one does.
    """
    rows = list(_rows(spans))
    began, ended = min(span.start for span in spans), max(span.end for span in spans)
    axis = _Axis(began, max(ended - began, 1e-6))
    height = HEAD + ROW * len(rows) + FOOT
    services = list(dict.fromkeys(span.service for span, _ in rows))
    names = ", ".join(f"{span.name} ({span.service})" for span, _ in rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'role="img" aria-labelledby="title description" font-family="system-ui, -apple-system, \'Segoe UI\', Roboto, '
        "'DejaVu Sans', Helvetica, Arial, sans-serif\">",
        f'<title id="title">{_text(title)}</title>',
        f'<desc id="description">{_text(names)}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="panel" width="{WIDTH}" height="{height}" rx="10"/>',
        *_legend(services),
        *axis.lines(height - FOOT + 6),
    ]
    for place, (span, depth) in enumerate(rows):
        parts += _row(span, depth, HEAD + ROW * place, axis, services.index(span.service) % COLOURS)
    return "\n".join([*parts, "</svg>", ""])


def _rows(spans: Iterable[TraceSpan]) -> Iterator[tuple[TraceSpan, int]]:
    """Yield each span with its depth."""
    ordered = sorted(spans, key=lambda span: (span.start, -span.end))
    ids = {span.id for span in ordered}
    children: dict[str | None, list[TraceSpan]] = {}
    for span in ordered:
        known = span.parent in ids and span.parent != span.id
        children.setdefault(span.parent if known else None, []).append(span)
    waiting = [(span, 0) for span in reversed(children.get(None, []))]
    while waiting:
        span, depth = waiting.pop()
        yield span, depth
        waiting += [(child, depth + 1) for child in reversed(children.get(span.id, []))]


class _Axis:
    """Axis of time, from the beginning of the trace on."""

    def __init__(self, began: float, seconds: float) -> None:
        self._began = began
        self._seconds = seconds
        self._left, self._right = MARGIN + NAMES, WIDTH - MARGIN - 10

    def place(self, moment: float) -> float:
        """Return the pixels from the left."""
        return self._left + (moment - self._began) / self._seconds * (self._right - self._left)

    def lines(self, bottom: float) -> Iterator[str]:
        """Yield the lines of the grid and their times."""
        step = 10 ** math.floor(math.log10(self._seconds / TICKS))
        step *= next(factor for factor in (1, 2, 5, 10) if self._seconds / (step * factor) <= TICKS)
        for number in range(int(self._seconds / step) + 1):
            x = self.place(self._began + number * step)
            yield f'<line class="grid" x1="{x:.1f}" y1="{HEAD - 8}" x2="{x:.1f}" y2="{bottom:.1f}"/>'
            yield f'<text class="note middle" x="{x:.1f}" y="{HEAD - 14}">{_duration(number * step)}</text>'


def _duration(seconds: float) -> str:
    if seconds == 0:
        return "0"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _legend(services: Iterable[str]) -> Iterator[str]:
    x = float(MARGIN)
    for place, service in enumerate(services):
        name = _cut(service)
        yield f'<rect class="s{place % COLOURS}" x="{x:.1f}" y="18" width="13" height="13" rx="3"/>'
        yield f'<text class="name" x="{x + 19:.1f}" y="29">{_text(name)}</text>'
        x += 19 + 8 * len(name) + 22


def _row(span: TraceSpan, depth: int, top: float, axis: _Axis, colour: int) -> Iterator[str]:
    x, end = axis.place(span.start), axis.place(span.end)
    width = max(end - x, MIN_BAR)
    name_x, base = MARGIN + INDENT * min(depth, MAX_DEPTH), top + BAR - 3
    failed = " error" if span.error else ""
    title = f"{span.name}, {span.service}: {_duration(span.end - span.start)}{f', {span.error}' if span.error else ''}"
    yield f'<g><title>{_text(title)}</title><text class="name" x="{name_x}" y="{base}">{_text(_cut(span.name))}</text>'
    yield f'<rect class="s{colour}{failed}" x="{x:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" rx="3"/>'
    note = " ".join(filter(None, [_duration(span.end - span.start), _cut((span.error or "").rpartition(".")[2])]))
    is_left = x + width > NOTE_LEFT_FROM
    place = f'end" x="{x - 6:.1f}"' if is_left else f'" x="{x + width + 6:.1f}"'
    yield f'<text class="{"failed" if span.error else "note"} {place} y="{base}">{_text(note)}</text></g>'


def _cut(text: str) -> str:
    return text if len(text) <= MAX_NAME else text[: MAX_NAME - 1] + "…"


def _text(text: str) -> str:
    """Return a text for XML: names of spans hold names of queues, which may be anything."""
    return escape(UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text), {'"': "&quot;"})
