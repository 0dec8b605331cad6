"""Tests of examples: those of one file share a process, and so the server that the pytest plugin starts for it."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of this folder together when pytest-xdist hands them out."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(f"examples/{item.path.stem}"))
