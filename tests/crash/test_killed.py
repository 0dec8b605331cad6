"""Producers and workers, and the servers under them, killed with SIGKILL at random moments.

What holds afterwards is proven from the pushes that were acknowledged and what the database holds.
``MONGOQ_CRASH_SEED`` brings a schedule back.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.crash.campaign import LOG, Campaign
from tests.crash.claims import broken
from tests.crash.worker import Engine

SEED = int(os.environ.get("MONGOQ_CRASH_SEED", random.randrange(2**32)))


def prove(campaign: Campaign, memory: Path, notes: Path) -> None:
    """Fight a campaign, and check every claim."""
    print(f"MONGOQ_CRASH_SEED={campaign.seed}")
    evidence = campaign.run(memory, notes)
    figures = evidence.figures()
    print(f"{campaign}: {figures}")
    if violations := broken(evidence):
        print("\n".join(evidence.story(violations[0].item)))
    assert not violations, f"{len(violations)} violations, such as\n" + "\n".join(map(str, violations[:20]))
    unexpected = (notes / LOG).read_text()
    assert "Traceback" not in unexpected, unexpected
    assert all(figures[name] >= least for name, least in campaign.enough.items()), figures


def campaigns(*, one_node: int, three_nodes: int, crashes: int, enough: dict[str, int]) -> list[Any]:
    """Return campaigns with so many kills each or more, until enough was done, for both engines."""
    engines: tuple[Engine, ...] = ("threads", "asyncio")
    return [
        pytest.param(Campaign(nodes, engine, kills, crashes, SEED, enough), id=f"{nodes} nodes, {engine}")
        for nodes, kills in ((1, one_node), (3, three_nodes))
        for engine in engines
    ]


ONE_NODE_THREADS, _, _, THREE_NODES_ASYNCIO = campaigns(
    one_node=20, three_nodes=10, crashes=2, enough={"committed": 20}
)


@pytest.mark.prove
@pytest.mark.parametrize("campaign", [THREE_NODES_ASYNCIO])
def test_a_killed_primary_loses_nothing_and_doubles_nothing(campaign: Campaign, memory: Path, tmp_path: Path) -> None:
    prove(campaign, memory, tmp_path)


@pytest.mark.prove
@pytest.mark.parametrize("campaign", [ONE_NODE_THREADS])
def test_killed_processes_and_servers_lose_nothing_and_double_nothing(
    campaign: Campaign, memory: Path, tmp_path: Path
) -> None:
    prove(campaign, memory, tmp_path)


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "campaign",
    campaigns(one_node=250, three_nodes=250, crashes=10, enough={"interrupted runs": 1, "overtaken runs": 1}),
)
def test_a_thousand_kills_lose_nothing_and_double_nothing(campaign: Campaign, memory: Path, tmp_path: Path) -> None:
    prove(campaign, memory, tmp_path)
