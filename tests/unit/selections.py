"""A plugin of pytest that finds the selections of tests that select nothing: all files are collected once.

    MONGOQ_SELECTIONS=selections.json python -m pytest --collect-only -p tests.unit.selections FILE ...

The file holds a list of selections, each of files or ids of tests, and perhaps ``-k`` and an expression. The plugin
writes the empty ones in its place.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from _pytest.mark import deselect_by_keyword  # the very function behind -k; there is no public one


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Replace the selections in the file by those that select no test."""
    place = Path(os.environ["MONGOQ_SELECTIONS"])
    empty = []
    for selection in json.loads(place.read_text()):
        starts, _, expression = selection, "", ""
        if "-k" in selection:
            *starts, _, expression = selection
        inside = tuple(f"{start}{end}" for start in starts for end in ("::", "["))
        selected = [item for item in items if item.nodeid in starts or item.nodeid.startswith(inside)]
        config.option.keyword = expression
        if expression:
            deselect_by_keyword(selected, config)
        if not selected:
            empty.append(selection)
    config.option.keyword = ""
    place.write_text(json.dumps(empty))
