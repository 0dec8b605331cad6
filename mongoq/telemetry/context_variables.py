"""Context variables that travel with items, as JSON in their headers."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from contextvars import ContextVar, Token
from typing import Any

from mongoq.data.arguments import count
from mongoq.data.envelope import CONTEXT_PREFIX
from mongoq.data.item import Item
from mongoq.errors import ArgumentInvalid

logger = logging.getLogger("mongoq.telemetry")

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
            value = self._parse(header, first)
            if value is not ABSENT:
                tokens.append((variable, variable.set(value)))
        return tokens

    @staticmethod
    def reset(tokens: Iterable[tuple[ContextVar[Any], Token[Any]]]) -> None:
        """Set the variables back to the values that they had before ``restore``."""
        for variable, token in tokens:
            variable.reset(token)

    def _parse(self, header: str, text: str) -> Any:
        """Return the value of a header; another program may have written anything into it."""
        # Characters, not bytes: the check only keeps a huge header from being parsed.
        if len(text) > self._max_bytes:
            return ABSENT
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            logger.debug("header %r is no JSON, and its context variable is not set", header)
            return ABSENT

    def _warn(self, variable: ContextVar[Any], problem: str) -> None:
        if variable.name not in self._warned:
            self._warned.add(variable.name)
            logger.warning("context variable %r does not travel with items: %s", variable.name, problem)
