"""Handlers of frames; tests import this module when they run, since pandas and pyarrow take long to import."""

from __future__ import annotations

from typing import Any

import pandas
import pyarrow
import pyarrow.compute

import mongoq


def enrich(flights: pandas.DataFrame) -> pandas.DataFrame:
    return flights.assign(late=flights["delay"] > 15)


def enrich_table(flights: pyarrow.Table) -> pyarrow.Table:
    return flights.append_column("late", pyarrow.compute.greater(flights["delay"], 15))


def takes_list(flights: list[dict[str, Any]]) -> Any: ...
def takes_table(flights: pyarrow.Table) -> Any: ...
def returns_dict(flights: Any) -> dict[str, Any]: ...  # type: ignore[empty-body]
def returns_none(flights: Any) -> None: ...
def returns_list(flights: Any) -> list[mongoq.Drop]: ...  # type: ignore[empty-body]
def takes_much(flights: Any, job: Any, more: Any) -> Any: ...
