"""Trace headers: the trace context that travels with an item, in the form of W3C."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

TRACEPARENT = "traceparent"
"""Header with the span that pushed the item: 55 characters in version 0 of the standard."""
LINKS = "mongoq-links"
"""Header of a joined item: a list of the ``traceparent`` headers of its other inputs."""
TRACE_CONTEXT = (TRACEPARENT, "tracestate", "baggage")
"""Headers of one trace context by the standards of W3C."""
CONTEXT_PREFIX = "mongoq-context-"
"""Prefix of the headers with context variables; the name of the variable follows."""

MAX_TRACEPARENT = 128
"""Characters of a ``traceparent``, at most: a longer one is no trace context."""
MAX_LINKS = 32
"""Links of a joined item, at most: joins of joins would collect ever more."""


def join_headers(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the headers of an item made of several, which links to their traces.

    Headers of an earlier part win over the same headers of a later one.
    """
    headers: dict[str, Any] = {}
    for part in reversed(parts):
        headers |= part
    own = headers.get(TRACEPARENT)
    links = [link for link in dict.fromkeys(_find_links(parts)) if link != own]
    if links:
        headers[LINKS] = links[:MAX_LINKS]
    return headers


def trace_to_keep(headers: Mapping[str, Any], new_headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trace headers of an item that stay when its headers are replaced by new ones.

    New headers with a trace context of their own, or a part of one, end the trace: two halves would be no context.
    """
    kept: dict[str, Any] = {}
    if all(name not in new_headers for name in (*TRACE_CONTEXT, LINKS)):
        kept = {name: value for name in TRACE_CONTEXT if isinstance(value := headers.get(name), str)}
        if links := trace_links(headers):
            kept[LINKS] = links
    variables = (name for name in headers if name.startswith(CONTEXT_PREFIX) and name not in new_headers)
    return kept | {name: headers[name] for name in variables if isinstance(headers[name], str)}


def trace_links(headers: Mapping[str, Any]) -> list[str]:
    """Return the links of an item; other programs may have written anything into this header."""
    links = headers.get(LINKS)
    return [link for link in links[:MAX_LINKS] if _is_traceparent(link)] if isinstance(links, list) else []


def _find_links(parts: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for part in parts:
        traceparent: Any = part.get(TRACEPARENT)
        if _is_traceparent(traceparent):
            yield traceparent
        yield from trace_links(part)


def _is_traceparent(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TRACEPARENT
