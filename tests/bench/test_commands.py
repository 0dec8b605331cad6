"""The benchmark of commands, in small: that it still runs, and that the cost of a scrape is bounded."""

from pathlib import Path

import pytest

from bench.commands import PARTS
from tests.bench.running import ran

pytestmark = [pytest.mark.bench, pytest.mark.prove]


def test_each_command_is_measured(tmp_path: Path) -> None:
    result = ran(tmp_path / "commands.json", "commands", "--items", "2000", "--waiting", "2000")
    assert set(PARTS) <= set(result)
    measured = {each["command"]: each for part in PARTS for each in result[part]["measured"]}
    assert measured["a scrape"]["documents_examined"] > 0
    for name, each in measured.items():
        assert each["ms"] > 0, name
        assert each.get("exit", 0) in (0, 1), each
    # A letter that is the only one of its kind is found, behind all others.
    assert measured["dead list orders --reason rare"]["lines"] > 1
    assert measured["peek orders --state expired"]["lines"] > 1
