"""The trace of an item goes on in an executor, and stays in the headers of its rows."""

from __future__ import annotations

from typing import Any

import mongoq
import mongoq.telemetry


def test_a_handler_in_an_executor_runs_in_the_trace_of_its_item(drained: Any, broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("shop", errors="shop.errors", outputs="done")

    @pipeline.stage("orders", to="done")
    def tell(order: Any) -> str:
        from opentelemetry import trace  # of the executor

        return format(trace.get_current_span().get_span_context().trace_id, "032x")

    mongoq.telemetry.instrument(pipeline)
    parent = f"00-{7:032x}-{8:016x}-01"
    broker.queue("orders").push("bolt", headers={"traceparent": parent})
    drained(pipeline)
    [done] = broker.queue("done").peek()
    assert done.payload == f"{7:032x}"
    assert done.headers == {"traceparent": parent}
