"""Propagation: the trace context in the headers of items, written at a push and read around a handler."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, get_current_span, set_span_in_context

from mongoq.data.encoding.codec import HEADERS_LIMIT, Encoding
from mongoq.data.envelope import LINKS, TRACEPARENT, trace_links
from mongoq.data.item import Item
from mongoq.errors import PayloadTooLarge
from mongoq.telemetry.context_variables import ContextVariables

logger = logging.getLogger("mongoq.telemetry")

MAX_HEADER = 8192
"""Characters of a header that are parsed, at most; the standards for baggage and tracestate ask for no more."""
MAX_LINKS = 128
"""Links of one span, at most: the default limit of the SDK."""


class Propagation:
    """Writes headers at a push, by the global propagator and the context variables, and reads them."""

    def __init__(self, variables: ContextVariables) -> None:
        self.variables = variables
        self._warned = False

    def write(self, headers: Any, span: Span, encoding: Encoding) -> Any:
        """Return the headers of a push with the context of its span; headers of the producer's own are never changed.

        Headers that are invalid, or have no room left, are returned as they are: telemetry fails no push.
        """
        if headers is not None and not isinstance(headers, Mapping):
            return headers
        try:
            added = self._make_headers(headers, span)
            if not added:
                return headers
            merged = {**added, **(headers or {})}
            encoding.encode("headers", merged, limit=HEADERS_LIMIT)
        except PayloadTooLarge:
            self._warn()
            return headers
        except Exception as error:
            logger.debug("no trace context in the headers of a push: %r", error)
            return headers
        return merged

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("the headers of a push have no room for its trace context; it is left out")

    def _make_headers(self, given: Mapping[Any, Any] | None, span: Span) -> dict[str, Any]:
        headers: dict[str, Any] = {}
        # One trace context of two origins would be none, so a header of the producer's own keeps all of them out.
        if not given or given.keys().isdisjoint(propagate.get_global_textmap().fields):
            propagate.inject(headers, context=set_span_in_context(span))
        if self.variables:
            headers |= self.variables.headers()
        return headers

    def read(self, headers: Mapping[str, Any], context: Context) -> Context:
        """Return the context with the trace context of an item; unchanged if the headers have none."""
        if not headers:
            return context
        try:
            fields = propagate.get_global_textmap().fields
            # Other programs may have written anything, and propagators expect short strings.
            found = {name: headers.get(name) for name in fields}
            carrier = {name: text for name, text in found.items() if isinstance(text, str) and len(text) <= MAX_HEADER}
            return propagate.extract(carrier, context=context) if carrier else context
        except Exception as error:
            logger.debug("the trace context of an item cannot be read: %r", error)
            return context

    def read_with_links(self, headers: Mapping[str, Any], context: Context) -> tuple[Context, Sequence[SpanContext]]:
        """Return the context with the trace context of an item, and the contexts that its span links to."""
        read = self.read(headers, context)
        if LINKS in headers:
            return read, self.linked_contexts([headers])
        span = get_current_span(read)
        return read, () if span is get_current_span(context) else (span.get_span_context(),)

    def span_contexts(self, items: Iterable[Any]) -> list[SpanContext]:
        """Return the contexts in which items were pushed, each once; those of the inputs of joins as well."""
        return self.linked_contexts(item.headers for item in items if isinstance(item, Item))

    def linked_contexts(self, all_headers: Iterable[Mapping[str, Any]]) -> list[SpanContext]:
        """Return the contexts in the headers of items, each once."""
        found = {(one.trace_id, one.span_id): one for one in islice(self._find_contexts(all_headers), MAX_LINKS)}
        return list(found.values())

    def _find_contexts(self, all_headers: Iterable[Mapping[str, Any]]) -> Iterator[SpanContext]:
        for headers in all_headers:
            if not headers:
                continue
            for part in (headers, *({TRACEPARENT: link} for link in trace_links(headers))):
                context = get_current_span(self.read(part, Context())).get_span_context()
                if context.is_valid:
                    yield context
