"""The list of mutants keeps up with the code: each names a line that is there, as often as it says, and its tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MUTANTS: list[dict[str, Any]] = tomllib.loads((ROOT / "scripts" / "mutants.toml").read_text())["mutant"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["name"])
def test_a_mutant_breaks_what_is_there(mutant: dict[str, Any]) -> None:
    assert (ROOT / mutant["file"]).read_text().count(mutant["old"]) == mutant.get("count", 1)
    assert (ROOT / mutant["tests"][0].partition("::")[0]).exists()


def test_no_two_mutants_have_one_name() -> None:
    assert len({mutant["name"] for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.prove
@pytest.mark.timeout(600)
def test_every_mutant_has_tests_that_could_fail(tmp_path: Path) -> None:
    selections = sorted({tuple(mutant["tests"]) for mutant in MUTANTS})
    files = sorted(
        {test.partition("::")[0] for selection in selections for test in selection if test.startswith("tests/")}
    )
    place = tmp_path / "selections.json"
    place.write_text(json.dumps([*selections, [files[0], "-k", "no_test_has_this_name"]]))
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "tests.unit.selections", *files]
    environment = {**os.environ, "MONGOQ_SELECTIONS": str(place)}
    completed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout[-2000:]
    assert json.loads(place.read_text()) == [[files[0], "-k", "no_test_has_this_name"]]
