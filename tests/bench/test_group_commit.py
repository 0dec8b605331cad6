"""The benchmark of group commit, in small and without Keuss: that it still runs, and what its result looks like."""

from pathlib import Path

import pytest

from tests.bench.running import ran

WAYS = ("mongoq", "uvloop", "alone", "bare", "commands", "threads", "threads_alone")

pytestmark = [pytest.mark.bench, pytest.mark.prove]


def test_it_measures_both_operations_with_and_without_and_by_hand(tmp_path: Path) -> None:
    out = tmp_path / "group.json"
    small = ["--no-keuss", "--threads", "--callers", "8", "--seconds", "0.2", "--rounds", "1"]
    result = ran(out, "group-commit", *small)
    assert [(operation["operation"], operation["callers"]) for operation in result["operations"]] == [
        ("push", 8),
        ("reserve and commit", 8),
    ]
    for operation in result["operations"]:
        assert min(operation[way]["per_second"] for way in WAYS) > 0
    assert result["missed"] == []
