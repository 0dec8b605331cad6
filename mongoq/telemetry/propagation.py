"""Propagation: trace context and context variables in the headers of items, from a push to its handler."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar, Token
from itertools import islice
from typing import Any

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, get_current_span, set_span_in_context

from mongoq.data.arguments import count
from mongoq.data.encoding.codec import HEADERS_LIMIT, Encoding
from mongoq.data.envelope import CONTEXT_PREFIX, TRACEPARENT, trace_links
from mongoq.data.item import Item
from mongoq.errors import ArgumentInvalid, PayloadTooLarge

logger = logging.getLogger("mongoq.telemetry")

MAX_HEADER = 8192
"""Characters of a header that are parsed, at most; the standards for baggage and tracestate ask for no more."""
MAX_LINKS = 128
"""Links of one span, at most: the default limit of the SDK."""
ABSENT = object()
"""Stands for a variable without a value."""


class ContextVariables:
    """Variables of the application, for example a tenant, that handlers find as they were at the push."""

    def __init__(self, variables: Iterable[ContextVar[Any]], max_bytes: int) -> None:
        given: Any = variables
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise ArgumentInvalid("context_variables", f"a sequence of ContextVar, not {type(given).__name__}")
        self._max_bytes = count(max_bytes, "max_context_bytes", least=0)
        self._by_header: dict[str, ContextVar[Any]] = {}
        for variable in given:
            if not isinstance(variable, ContextVar):
                raise ArgumentInvalid("context_variables", f"ContextVar objects, not {type(variable).__name__}")
            header = CONTEXT_PREFIX + variable.name
            if header in self._by_header:
                raise ArgumentInvalid("context_variables", f"two variables have the name {variable.name!r}")
            self._by_header[header] = variable
        self._warned: set[str] = set()

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._by_header)

    def headers(self) -> dict[str, str]:
        """Return the headers for the present values; a variable without a value has none.

        A value that is no JSON, or that does not fit the limit beside the ones before it, is left out, with a warning.
        """
        headers: dict[str, str] = {}
        left = self._max_bytes
        for header, variable in self._by_header.items():
            value = variable.get(ABSENT)
            if value is ABSENT:
                continue
            try:
                text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
                size = len(header) + len(text.encode())
            except (TypeError, ValueError, RecursionError) as error:
                self._warn(variable, f"its value is no JSON ({type(error).__name__})")
                continue
            if size > left:
                self._warn(variable, f"it has {size:,} bytes, and {left:,} of max_context_bytes are left")
                continue
            headers[header] = text
            left -= size
        return headers

    def restore(self, items: Sequence[Item[Any]]) -> list[tuple[ContextVar[Any], Token[Any]]]:
        """Set the variables to the values that all of the items have, and return tokens for ``reset``."""
        tokens = []
        for header, variable in self._by_header.items():
            first = items[0].headers.get(header)
            if not isinstance(first, str) or any(item.headers.get(header) != first for item in items[1:]):
                continue
            # Another program may have written anything. Characters, not bytes: huge texts are not parsed.
            if len(first) <= self._max_bytes:
                try:
                    tokens.append((variable, variable.set(json.loads(first))))
                except (ValueError, RecursionError):
                    logger.debug("header %r is no JSON, and its context variable is not set", header)
        return tokens

    @staticmethod
    def reset(tokens: Iterable[tuple[ContextVar[Any], Token[Any]]]) -> None:
        """Set the variables back to the values that they had before ``restore``."""
        for variable, token in tokens:
            variable.reset(token)

    def _warn(self, variable: ContextVar[Any], problem: str) -> None:
        if variable.name not in self._warned:
            self._warned.add(variable.name)
            logger.warning("context variable %r does not travel with items: %s", variable.name, problem)


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
            added: dict[str, Any] = {}
            # One trace context of two origins would be none, so a header of the producer's own keeps all of them out.
            if not headers or headers.keys().isdisjoint(propagate.get_global_textmap().fields):
                propagate.inject(added, context=set_span_in_context(span))
            added |= self.variables.headers()
            if not added:
                return headers
            merged = {**added, **(headers or {})}
            encoding.encode("headers", merged, limit=HEADERS_LIMIT)
        except PayloadTooLarge:
            if not self._warned:
                self._warned = True
                logger.warning("the headers of a push have no room for its trace context; it is left out")
            return headers
        except Exception as error:
            logger.debug("no trace context in the headers of a push: %r", error)
            return headers
        return merged

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
