"""The benchmark of the core, in small: that it still runs, and what its result looks like."""

from typing import Any

import pytest

from bench.batches import BATCHES
from bench.operations import OPERATIONS
from tests.bench.running import ran

DEPTH = 1000
BATCH = 5
SHELLS = ["sync", "asyncio"]

# one run of the benchmark serves all tests, in one process
pytestmark = [pytest.mark.bench, pytest.mark.prove, pytest.mark.xdist_group("bench core")]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the benchmark as a user does, on a private server."""
    out = tmp_path_factory.mktemp("bench") / "core.json"
    sizes = ["--rounds", "2", "--calls", "3", "--depth", str(DEPTH), "--depth-rounds", "2"]
    sizes += ["--batch", str(BATCH), "--batch-rounds", "2", "--replay", "501", "--replay-rounds", "2"]
    sizes += ["--stats-rounds", "2"]
    return ran(out, "core", *sizes)


def test_it_says_what_the_numbers_depend_on(result: dict[str, Any]) -> None:
    assert result["benchmark"] == "core"
    machine = result["machine"]
    assert {"cores", "python", "pymongo", "mongod", "history_window_seconds"} <= machine.keys()
    assert (machine["write_concern"], machine["payload_bytes"]) == ("majority", 200)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_operation_stands_beside_the_bare_driver(result: dict[str, Any], shell: str) -> None:
    measured = result["shells"][shell]["operations"]
    assert [each["operation"] for each in measured] == [each.name for each in OPERATIONS]
    for each in measured:
        assert min(each["mongoq"]["rate"], each["bare"]["rate"]) > 0
        assert each["ratio"]["quartile_low"] <= each["ratio"]["median"] <= each["ratio"]["quartile_high"]
        assert each["reached"] is (f"{shell}: {each['operation']}" not in result["missed"])


@pytest.mark.parametrize("shell", SHELLS)
def test_the_bare_driver_sends_the_same_commands(result: dict[str, Any], shell: str) -> None:
    different = [each for each in result["shells"][shell]["operations"] if not each["same_commands"]]
    assert different == []


@pytest.mark.parametrize("shell", SHELLS)
def test_every_batch_stands_beside_the_same_commands_of_the_bare_driver(result: dict[str, Any], shell: str) -> None:
    measured = result["batches"][shell]["operations"]
    assert [(each["operation"], each["items"]) for each in measured] == [(each.name, BATCH) for each in BATCHES]
    assert [each for each in measured if not each["same_commands"]] == []
    for each in measured:
        assert min(each["mongoq"]["rate"], each["bare"]["rate"]) > 0
        assert each["reached"] is (f"{shell}: {each['operation']} of {BATCH}" not in result["missed"])


@pytest.mark.parametrize("shell", SHELLS)
def test_a_replay_stands_beside_reads_and_inserts_and_beside_inserts_alone(result: dict[str, Any], shell: str) -> None:
    measured = result["replay"][shell]
    assert measured["same_commands"], measured["commands"]
    for limit in ("beside_reads_and_inserts", "beside_inserts"):
        assert measured[limit]["ratio"]["median"] > 0
        assert measured[limit]["mongoq"]["items_per_second"] > 0
    assert measured["reached"] is (f"{shell}: replay" not in result["missed"])


@pytest.mark.parametrize("shell", SHELLS)
def test_counting_stands_beside_a_broker_that_does_not_count(result: dict[str, Any], shell: str) -> None:
    measured = result["stats"][shell]
    assert min(measured["on"]["rate"], measured["off"]["rate"], measured["count_us"], measured["flush_ms"]) > 0
    assert measured["reached"] is (f"{shell}: stats" not in result["missed"])


def test_claims_in_deep_queues_are_explained(result: dict[str, Any]) -> None:
    scenarios = {each["scenario"]: each for each in result["depth"]["scenarios"]}
    assert list(scenarios) == ["scheduled", "processed", "ready", "all together"]
    assert scenarios["all together"]["items"] == {"scheduled": DEPTH, "processed": DEPTH, "ready": DEPTH}
    for scenario in scenarios.values():
        assert [each["operation"] for each in scenario["operations"]] == ["reserve", "pop"]
        for each in scenario["operations"]:
            plan = each["many"]["plan_of_first"]
            assert plan["keys_examined"] == 1
            stages = plan["stages"].split("/")
            assert "IXSCAN" in stages
            assert "SORT" not in stages
            assert each["ratio"]["median"] > 0
