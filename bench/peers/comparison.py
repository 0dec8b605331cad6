"""Measurements of peers: each empties a queue of its own several times. A peer that cannot run has the reason."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from subprocess import SubprocessError
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from bench import report
from bench.keuss import KeussUnavailable
from bench.operations import payload
from bench.peers.environment import PeerUnavailable
from bench.peers.peer import CONCERN, PEERS, Peer, Start
from bench.place import Place
from bench.processes import ProcessFailed, run_side_by_side

__all__ = ["measure"]

LONGEST = 300.0
"""Seconds that a peer may take to push and consume."""


def measure(here: Place, folder: Path, *, items: int, rounds: int, mongoq: float) -> list[dict[str, Any]]:
    """Measure all peers; ``mongoq`` is how many items a second mongoq's worker did in this run."""
    return [_measure_peer(here, peer, folder, items=items, rounds=rounds, mongoq=mongoq) for peer in PEERS]


def _measure_peer(here: Place, peer: Peer, folder: Path, *, items: int, rounds: int, mongoq: float) -> dict[str, Any]:
    wanted = max(1, round(items * peer.times))
    result: dict[str, Any] = {"peer": peer.name, "driven": peer.driven, "write_concern": CONCERN, "note": peer.note}
    try:
        start = peer.install(folder.absolute())
        result |= {"version": start.version, "items": wanted}
        results = [_empty_queue(here, start, wanted) for _ in range(rounds)]
    except (ProcessFailed, KeussUnavailable, OSError, PeerUnavailable, SubprocessError) as error:
        report.progress(f"{peer.name:24} cannot be measured: {error}")
        return result | {"unavailable": str(error)}
    rates = [each["items"] / each["seconds"] for each in results]
    result |= {"per_second": round(median(rates)), "all": [round(rate) for rate in rates]}
    if "seconds_written" in results[0]:
        written = median(each["items"] / each["seconds_written"] for each in results)
        result["per_second_until_written"] = round(written)
    result["mongoq_times"] = round(mongoq / median(rates), 2)
    report.progress(f"{peer.name:24} {median(rates):9,.0f}/s; mongoq is {result['mongoq_times']} times as fast")
    return result


def _empty_queue(here: Place, start: Start, items: int) -> dict[str, Any]:
    database = f"{here.collection}_peer"
    parts = urlsplit(here.uri)
    query = f"{parts.query}&w=majority" if parts.query else "w=majority"
    uri = urlunsplit(parts._replace(path=f"/{database}", query=query))
    try:
        command, environment = start.command(uri, items), {"PAYLOAD": json.dumps(payload())}
        (result,) = run_side_by_side([command], environment=environment, folder=start.folder, seconds=LONGEST)
    finally:
        here.client.drop_database(database)
        here.client.drop_database(f"{database}_status")
    if result["items"] != items:
        raise ProcessFailed(f"it consumed {result['items']} of {items} items")
    return result
