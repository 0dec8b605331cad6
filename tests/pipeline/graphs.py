"""A graph with everything in it: routes, a filter, a loop, drops, batches, retries and errors."""

from __future__ import annotations

import time
from typing import Any

import mongoq

__all__ = ["ERRORS", "OUT", "RAW", "graph", "inputs", "outputs"]

RAW, OUT, ERRORS = "raw", "out", "graph.errors"
ROUNDS = 3
RETRIES = 60
"""More than anybody is killed: deaths count as runs."""


def inputs(number: int) -> list[dict[str, Any]]:
    return [{"n": n, "kind": ("plain", "round", "bad", "none", "skip")[n % 5]} for n in range(number)]


def graph(*, seconds: float = 0.0, lease: float = 30) -> mongoq.Pipeline:
    """Return the graph; ``seconds`` is how long each handler takes."""
    pipeline = mongoq.Pipeline("graph", errors=ERRORS, inputs=RAW, outputs=OUT, trail=True)
    common: dict[str, Any] = {
        "lease": lease,
        "max_retries": RETRIES,
        "retry": mongoq.Fixed(0.01),
        "concurrency": 3,
    }

    @pipeline.stage(RAW, to=["turning", "plain"], where={"kind": {"$ne": "skip"}}, otherwise=mongoq.Drop(), **common)
    def route(payload: Any) -> Any:
        time.sleep(seconds)
        if payload["kind"] == "bad":
            return mongoq.Dead("a bad one")
        if payload["kind"] == "round":
            return mongoq.Move("turning", payload={**payload, "rounds": 0})
        return mongoq.Move("plain")

    @pipeline.stage("turning", to=["turning", "joined"], **common)
    def turn(payload: Any) -> Any:
        time.sleep(seconds)
        if payload["rounds"] < ROUNDS:
            return mongoq.Move("turning", payload={**payload, "rounds": payload["rounds"] + 1})
        return mongoq.Move("joined")

    @pipeline.stage("plain", to="joined", none="drop", batch=5, **common)
    def enrich(payloads: Any) -> Any:
        time.sleep(seconds)
        return [None if payload["kind"] == "none" else {**payload, "rich": True} for payload in payloads]

    @pipeline.stage("joined", to=OUT, **common)
    def finish(payload: Any, job: Any) -> Any:
        time.sleep(seconds)
        if job.item.attempts == 1 and payload["n"] % 3 == 0:
            raise ValueError("the first time")
        return {**payload, "finished": True}

    return pipeline


def outputs(number: int) -> tuple[list[Any], list[Any]]:
    """Return what such a graph makes of its inputs: what comes out, and what is an error."""
    out, errors = [], []
    for payload in inputs(number):
        if payload["kind"] == "plain":
            out.append({**payload, "rich": True, "finished": True})
        elif payload["kind"] == "round":
            out.append({**payload, "rounds": ROUNDS, "finished": True})
        elif payload["kind"] == "bad":
            errors.append(payload)
    return out, errors
