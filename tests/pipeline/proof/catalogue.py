"""The graphs that are proven to do everything once, by name.

A graph is a function that declares its stages, what it is fed with, and what is to come out; another one is a few
lines, and a line in ``GRAPHS``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mongoq

__all__ = ["ERRORS", "GRAPHS", "ROWS", "Graph"]

ERRORS = "proof.errors"
ROWS = "MONGOQ_PROOF_ROWS"
"""The variable of the environment that names the file which sources read."""
LEASE = 0.5
ROUNDS = 3
COMMON: dict[str, Any] = {
    "lease": LEASE,
    "retry": mongoq.Fixed(0.01),
    "max_retries": 1_000,  # more than anybody is killed: deaths count as runs
    "concurrency": 2,
}
MANY = [mongoq.Move("left")] * 10_001
"""More than may come of one item."""

Payloads = Mapping[str, Sequence[Any]]
"""Payloads by queue."""


@dataclass(frozen=True)
class Graph:
    """A pipeline, and what it makes of what.

    Attributes:
        declare: declares its stages.
        pushed: its inputs, by queue.
        rows: the rows that its source reads.
        comes: what is left once it has come to its end, by queue: what comes out, and the errors.
    """

    declare: Callable[[mongoq.Pipeline], None]
    pushed: Payloads
    comes: Payloads
    rows: Sequence[Any] = ()

    def pipeline(self) -> mongoq.Pipeline:
        outputs = [queue for queue in self.comes if queue != ERRORS]
        pipeline = mongoq.Pipeline("proof", errors=ERRORS, inputs=list(self.pushed) or None, outputs=outputs)
        self.declare(pipeline)
        return pipeline


def linear(pipeline: mongoq.Pipeline) -> None:
    """Three stages: one that drops, with a filter, one of batches, and one that fails at first."""

    @pipeline.stage("raw", to="checked", where={"kind": {"$ne": "skip"}}, otherwise=mongoq.Drop(), **COMMON)
    def check(payload: Any) -> Any:
        if payload["kind"] == "bad":
            return mongoq.Dead("a bad one")
        return mongoq.Drop() if payload["kind"] == "drop" else {**payload, "checked": True}

    @pipeline.stage("checked", to="rich", batch=3, **COMMON)
    def enrich(payloads: Any) -> Any:
        return [{**payload, "rich": True} for payload in payloads]

    @pipeline.stage("rich", to="out", **COMMON)
    def finish(payload: Any, job: Any) -> Any:
        if job.item.attempts == 1 and payload["n"] == 1:
            raise ValueError("the first time")
        return payload


def fork(pipeline: mongoq.Pipeline) -> None:
    """Items become two or three, some of them in batches; what comes of one is more than can be."""

    @pipeline.stage("raw", to=["left", "right"], **COMMON)
    def split(payload: Any, job: Any) -> Any:
        if payload["kind"] == "large":
            return mongoq.Fork(MANY) if job.item.attempts < 3 else mongoq.Dead("refused each time")
        if payload["kind"] == "bad":
            return mongoq.Fork([mongoq.Move("left"), mongoq.Move("left", payload=2**64)]) if _young(job) else _bad()
        third = mongoq.Move("right", payload={**payload, "side": 3}) if payload["kind"] == "three" else None
        return mongoq.Fork([mongoq.Move("left"), mongoq.Move("right", payload={**payload, "side": 2}), third])

    @pipeline.stage("left", to=["out", "right"], batch=3, **COMMON)
    def split_again(payloads: Any) -> Any:
        return [
            mongoq.Fork([mongoq.Move("out"), mongoq.Move("right", payload={**payload, "side": 1})])
            for payload in payloads
        ]


def _young(job: Any) -> bool:
    return bool(job.item.attempts < 3)


def _bad() -> mongoq.Dead:
    return mongoq.Dead("wrong each time")


def loop(pipeline: mongoq.Pipeline) -> None:
    """Items go round."""

    @pipeline.stage("turning", to=["turning", "out"], **COMMON)
    def turn(payload: Any) -> Any:
        if payload["rounds"] == payload["most"]:
            return mongoq.Move("out")
        return mongoq.Move("turning", payload={**payload, "rounds": payload["rounds"] + 1})


def fork_loop(pipeline: mongoq.Pipeline) -> None:
    """Items go round, and leave another one behind in each round."""

    @pipeline.stage("turning", to=["turning", "dropping"], **COMMON)
    def turn(payload: Any) -> Any:
        if payload["kind"] == "bad":
            return mongoq.Dead("a bad one")
        again = {**payload, "rounds": payload["rounds"] + 1}
        onward = mongoq.Move("turning", payload=again) if payload["rounds"] < ROUNDS else None
        return mongoq.Fork([mongoq.Move("dropping"), onward])

    @pipeline.stage("dropping", to="out", batch=4, **COMMON)
    def carry(payloads: Any) -> Any:
        return payloads


def join(pipeline: mongoq.Pipeline) -> None:
    """Orders meet their payments, some of them several of one value; some cannot be joined, or fail once they are."""

    @pipeline.join(["orders", "payments"], to="out", on="n", **COMMON)
    def settle(order: Any, payment: Any, job: Any) -> Any:
        if order["kind"] == "bad":
            return mongoq.Dead("a bad one")
        if job.item.attempts == 1 and order["n"] == 1:
            raise ValueError("the first time")
        return {**order, "paid": payment["n"]}


def fork_join(pipeline: mongoq.Pipeline) -> None:
    """Both halves of an item go their own ways, and meet again."""

    @pipeline.stage("raw", to=["left", "right"], **COMMON)
    def split(payload: Any) -> Any:
        return mongoq.Fork([mongoq.Move("left"), mongoq.Move("right")])

    @pipeline.stage("left", to="checked", batch=3, **COMMON)
    def check(payloads: Any) -> Any:
        return [{**payload, "checked": True} for payload in payloads]

    @pipeline.join(["checked", "right"], to="out", on="n", **COMMON)
    def unite(checked: Any, raw: Any) -> Any:
        return [mongoq.Dead("a bad one"), {**checked, "raw": raw["n"]}][checked["kind"] == "plain"]


def source(pipeline: mongoq.Pipeline) -> None:
    """Records come by themselves, in several batches, and again when more has been written."""

    @pipeline.source(to="raw", name="rows", batch=3, every=0.05, lease=LEASE)
    def rows(position: Any) -> Any:
        with Path(os.environ[ROWS]).open("rb") as file:
            file.seek(position or 0)
            while (row := file.readline()).endswith(b"\n"):
                yield mongoq.Record(json.loads(row), position=file.tell())

    @pipeline.stage("raw", to="out", **COMMON)
    def check(payload: Any) -> Any:
        return mongoq.Dead("a bad one") if payload["kind"] == "bad" else payload


def _kinds(*kinds: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"n": n, "kind": kind, **fields} for n, kind in enumerate(kinds)]


def _sides(payloads: Sequence[Any]) -> list[dict[str, Any]]:
    """Return what comes to the right of the fork."""
    most = {"two": 2, "three": 3}
    return [{**payload, "side": side} for payload in payloads for side in range(1, most.get(payload["kind"], 0) + 1)]


LINE = _kinds("plain", "plain", "bad", "drop", "skip", "plain", "plain")
FORKED = _kinds("two", "three", "large", "bad", "two", "three")
TURNING = [{"n": n, "rounds": 0, "most": most} for n, most in enumerate((ROUNDS, 0, 1, 2, 1))]
ORDERS = _kinds("plain", "plain", "bad", "plain", "plain")
LEAVING = _kinds(*["plain", "plain", "plain", "bad"] * 2, rounds=0)

GRAPHS = {
    "linear": Graph(
        linear,
        pushed={"raw": LINE},
        comes={
            "out": [{**payload, "checked": True, "rich": True} for payload in LINE if payload["kind"] == "plain"],
            ERRORS: [LINE[2]],
        },
    ),
    "fork": Graph(
        fork,
        pushed={"raw": FORKED},
        comes={
            "out": [payload for payload in FORKED if payload["kind"] in ("two", "three")],
            "right": _sides(FORKED),
            ERRORS: [FORKED[2], FORKED[3]],
        },
    ),
    "loop": Graph(
        loop,
        pushed={"turning": TURNING},
        comes={"out": [{**payload, "rounds": payload["most"]} for payload in TURNING]},
    ),
    "join": Graph(
        join,
        pushed={
            "orders": [*ORDERS, ORDERS[0], {"n": None, "kind": "plain"}],
            "payments": [{"n": n} for n in (4, 0, 2, 3, 0, 1)],
        },
        comes={
            "out": [{**one, "paid": one["n"]} for one in (*ORDERS, ORDERS[0]) if one["kind"] == "plain"],
            ERRORS: [[ORDERS[2], {"n": 2}], {"n": None, "kind": "plain"}],
        },
    ),
    "fork-join": Graph(
        fork_join,
        pushed={"raw": ORDERS},
        comes={
            "out": [{**one, "checked": True, "raw": one["n"]} for one in ORDERS if one["kind"] == "plain"],
            ERRORS: [[{**ORDERS[2], "checked": True}, ORDERS[2]]],
        },
    ),
    "source": Graph(
        source,
        pushed={},
        rows=LINE,
        comes={"out": [payload for payload in LINE if payload["kind"] != "bad"], ERRORS: [LINE[2]]},
    ),
    "fork-loop": Graph(
        fork_loop,
        pushed={"turning": LEAVING},
        comes={
            "out": [
                {**payload, "rounds": rounds}
                for payload in LEAVING
                if payload["kind"] == "plain"
                for rounds in range(ROUNDS + 1)
            ],
            ERRORS: [payload for payload in LEAVING if payload["kind"] == "bad"],
        },
    ),
}
