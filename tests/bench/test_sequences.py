"""The benchmark of sequences, in small: that it still runs, and what its result looks like."""

from pathlib import Path

import pytest

from tests.bench.running import ROOT, ran

pytestmark = [pytest.mark.bench, pytest.mark.prove]


def test_sequences_stand_beside_the_bare_driver(tmp_path: Path) -> None:
    sizes = ["--sequences", "20", "--items", "3", "--hot", "30", "--rounds", "2"]
    plain = ["--before", str(ROOT), "--plain-seconds", "0.5"]
    result = ran(tmp_path / "sequences.json", "sequences", *sizes, *plain)
    assert len(result["machine"]["load_average"]) == 3
    for name in ("batches", "singly", "worker"):
        assert min(result[name]["per_second"], result[name]["bare_per_second"], result[name]["to_bare"]) > 0
        assert len(result[name]["all"]) == 2
    for name in ("plain singly", "plain batches"):
        assert min(*result[name]["per_second"].values(), result[name]["to_before"]) > 0
    assert set(result["missed"]) <= {"batches", "singly", "worker", "plain singly", "plain batches"}
