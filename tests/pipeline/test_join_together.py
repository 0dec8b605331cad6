"""Items of a join that are settled at the same moment meet at once, and who is about to meet is not parked before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from mongoq.model.item import Item, id_key, with_stored
from mongoq.pipeline.run.consumers import machinery
from mongoq.protocol.join.match import ARRIVALS_BEFORE_PARKING
from mongoq.protocol.settle.apply_outcomes import apply_outcomes_of_queues
from mongoq.protocol.settle.exchange import PutOff
from mongoq.protocol.state.context import context_of
from mongoq.worker.consumer import Consumer, SettleGroup
from tests.pipeline.conftest import Site, is_busy
from tests.waiting import until

WAITING, JOINED = "graph.both.waiting", "graph.both.joined"


class Coming:
    """Stands for who works for a queue, and says whether it is about to have more."""

    def __init__(self) -> None:
        self.more = True

    def is_expecting_items(self) -> bool:
        return self.more


class Meeting:
    """A join of ``a`` and ``b``, or of more, whose arrivals are settled by hand."""

    def __init__(self, broker: mongoq.Broker, *queues: str, **options: Any) -> None:
        self.broker = broker
        self.pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")
        self.queues = queues or ("a", "b")
        join = self.pipeline.join(self.queues, to="out", on="id", name="both", **options)
        join(lambda *payloads: mongoq.Move("out", payload=[*payloads]))
        declared = machinery(self.pipeline.graph, broker, coroutines=False)[0]
        self.consumers: dict[str, Consumer] = {consumer.name: consumer for consumer in declared}
        self.coming = {queue: Coming() for queue in self.queues}

    def watch(self) -> None:
        """Let it be known whether more items are about to come."""
        for queue, coming in self.coming.items():
            gathering = self.consumers[queue].settle_group
            assert gathering is not None
            gathering.join(queue, coming)

    def push(self, **payloads: list[Any]) -> list[tuple[Item[Any], Any]]:
        """Push to queues, reserve that, and return it as it is to be settled."""
        verdicts: list[tuple[Item[Any], Any]] = []
        for queue, batch in payloads.items():
            self.broker.queue(queue).push_many(batch)
            items = self.broker.queue(queue).reserve_many(len(batch))
            judged = self.consumers[queue].resolver.outcomes(self.consumers[queue], items, None)
            verdicts += zip(items, judged, strict=True)
        return verdicts

    def settle(self, verdicts: list[tuple[Item[Any], Any]]) -> Mapping[Any, Exception]:
        """Settle all of it together; returns the errors by ``id_key``."""
        parts = [
            (self.consumers[queue].queue._context, [verdict for verdict in verdicts if verdict[0].queue == queue])
            for queue in self.queues
        ]
        return self.broker._driver.run(apply_outcomes_of_queues(parts, context_of))

    def put_off(self, verdicts: list[tuple[Item[Any], Any]]) -> list[tuple[Item[Any], Any]]:
        """Settle, and return what was put off; nothing else has failed."""
        failed = self.settle(verdicts)
        assert all(isinstance(error, PutOff) for error in failed.values())
        return [verdict for verdict in verdicts if id_key(verdict[0].id) in failed]

    def joined(self) -> list[Any]:
        """Return the pairs that no handler has run."""
        return [item.payload for item in self.broker.queue(JOINED).peek(1_000)]

    def parked(self) -> list[Any]:
        """Return the payloads of the items that wait."""
        return [waiter.item.payload for waiter in self.pipeline.waiting(self.broker)]


def left_over(raw: Any) -> int:
    """Return how many join states there are."""
    return int(raw.count_documents({"_id": {"$regex": "^join:"}}))


def test_who_come_together_are_joined_without_waiting(broker: mongoq.Broker, raw: Any) -> None:
    meeting = Meeting(broker)
    verdicts = meeting.push(a=[{"id": n} for n in range(20)], b=[{"id": n} for n in reversed(range(20))])
    raw.database.command({"profile": 2})
    assert meeting.settle(verdicts) == {}
    raw.database.command({"profile": 0})
    assert sorted(a["id"] for a, _ in meeting.joined()) == list(range(20))
    assert all(a == b for a, b in meeting.joined())
    kinds = set(raw.database["system.profile"].distinct("op", {"ns": raw.full_name}))
    assert kinds & {"insert", "update", "remove"} == {"insert", "remove"}, "nobody was parked"
    assert left_over(raw) == 0


def test_several_of_one_value_that_come_together_pair_in_order(broker: mongoq.Broker, raw: Any) -> None:
    meeting = Meeting(broker)
    assert meeting.settle(meeting.push(a=[{"id": 1, "n": n} for n in range(2)])) == {}
    together = meeting.push(a=[{"id": 1, "n": n} for n in range(2, 5)], b=[{"id": 1, "n": n} for n in range(4)])
    assert meeting.settle(together) == {}
    assert [(a["n"], b["n"]) for a, b in meeting.joined()] == [(n, n) for n in range(4)]
    assert [payload["n"] for payload in meeting.parked()] == [4]
    assert meeting.settle(meeting.push(b=[{"id": 1, "n": 4}])) == {}
    assert (len(meeting.joined()), meeting.parked(), left_over(raw)) == (5, [], 0)


def test_three_that_come_together_are_joined(broker: mongoq.Broker, raw: Any) -> None:
    meeting = Meeting(broker, "a", "b", "c")
    assert meeting.settle(meeting.push(b=[{"id": 7, "from": "b"}])) == {}
    partners = {"a": [{"id": 7, "from": "a"}, {"id": 8}], "c": [{"id": 7, "from": "c"}]}
    assert meeting.settle(meeting.push(**partners)) == {}
    assert [[payload["from"] for payload in three] for three in meeting.joined()] == [["a", "b", "c"]]
    assert [payload["id"] for payload in meeting.parked()] == [8]
    assert left_over(raw) == 1


def test_who_was_removed_while_it_waited_keeps_nobody_from_who_comes(broker: mongoq.Broker) -> None:
    meeting = Meeting(broker)
    assert meeting.settle(meeting.push(a=[{"id": 1, "n": n} for n in range(3)])) == {}
    broker.queue(WAITING).purge()
    assert meeting.settle(meeting.push(a=[{"id": 1, "n": 3}], b=[{"id": 1, "n": 0}])) == {}
    assert [(a["n"], b["n"]) for a, b in meeting.joined()] == [(3, 0)]
    assert meeting.parked() == []


def test_one_that_is_lost_takes_nobody_with_it_but_its_partner_waits(broker: mongoq.Broker, raw: Any) -> None:
    meeting = Meeting(broker)
    verdicts = meeting.push(a=[{"id": n} for n in range(20)], b=[{"id": n} for n in range(20)])
    raw.update_one({"_id": verdicts[3][0].id}, {"$set": {"token": ObjectId()}})
    raw.delete_one({"_id": verdicts[27][0].id})
    failed = meeting.settle(verdicts)
    assert {key: type(error) for key, error in failed.items()} == {
        id_key(verdicts[place][0].id): mongoq.ReservationLost for place in (3, 27)
    }
    assert sorted(a["id"] for a, _ in meeting.joined()) == [n for n in range(20) if n not in (3, 7)]
    assert sorted((waiter.queue, waiter.item.payload["id"]) for waiter in meeting.pipeline.waiting(broker)) == [
        ("a", 7),
        ("b", 3),
    ]


def test_a_pair_too_large_for_one_document_is_buried_as_it_comes(broker: mongoq.Broker, raw: Any) -> None:
    meeting = Meeting(broker)
    large = {"id": 1, "x": "x" * (9 * 1024 * 1024)}
    assert meeting.settle(meeting.push(a=[large, {"id": 2}], b=[large, {"id": 2}])) == {}
    assert len(meeting.joined()) == 1
    assert {letter.origin.queue for letter in broker.queue("graph.errors").peek(5) if letter.origin} == {"a", "b"}
    assert (meeting.parked(), left_over(raw)) == ([], 0)


def test_who_comes_before_its_partner_is_put_off_while_more_is_coming(broker: mongoq.Broker, raw: Any) -> None:
    meeting = Meeting(broker)
    meeting.watch()
    verdicts = meeting.push(a=[{"id": n} for n in range(4)], b=[{"id": 0}])
    again = meeting.put_off(verdicts)
    assert [item.payload["id"] for item, _ in again] == [1, 2, 3]
    assert (len(meeting.joined()), meeting.parked(), left_over(raw)) == (1, [], 0)
    again = meeting.put_off(again + meeting.push(b=[{"id": 2}]))
    assert [item.payload["id"] for item, _ in again] == [1, 3]
    meeting.coming["b"].more = False
    assert meeting.put_off(again) == []
    assert sorted(payload["id"] for payload in meeting.parked()) == [1, 3]


def test_who_was_put_off_is_parked_when_several_turns_have_brought_no_partner(broker: mongoq.Broker) -> None:
    meeting = Meeting(broker)
    meeting.watch()
    again = meeting.put_off(meeting.push(a=[{"id": 1}]))
    for turn in range(ARRIVALS_BEFORE_PARKING):
        again = meeting.put_off(again + meeting.push(b=[{"id": 10 + turn}]))
        assert (1 in [item.payload["id"] for item, _ in again]) == (turn < ARRIVALS_BEFORE_PARKING - 1)
    assert [payload["id"] for payload in meeting.parked()] == [1]


def test_who_was_put_off_keeps_its_place(broker: mongoq.Broker) -> None:
    meeting = Meeting(broker)
    meeting.watch()
    older = meeting.put_off(meeting.push(a=[{"id": 1, "n": 0}]))
    verdicts = meeting.put_off(older + meeting.push(a=[{"id": 1, "n": 1}]))
    assert [item.payload["n"] for item, _ in verdicts] == [0, 1]
    assert meeting.put_off(verdicts + meeting.push(b=[{"id": 1, "n": n} for n in range(3)]))[0][0].payload["n"] == 2
    assert [(a["n"], b["n"]) for a, b in meeting.joined()] == [(0, 0), (1, 1)]


def test_who_is_put_off_leaves_no_place_behind(broker: mongoq.Broker, raw: Any) -> None:
    meeting = Meeting(broker)
    assert meeting.settle(meeting.push(a=[{"id": 1, "n": n} for n in range(2)])) == {}
    meeting.watch()
    [(later, _)] = meeting.put_off(meeting.push(a=[{"id": 1, "n": 2}], b=[{"id": 1, "n": 0}]))
    assert later.payload["n"] == 2
    meeting.put_off(meeting.push(b=[{"id": 1, "n": 1}]))
    assert [(a["n"], b["n"]) for a, b in meeting.joined()] == [(0, 0), (1, 1)]
    assert (meeting.parked(), left_over(raw)) == ([], 0)


def test_nobody_is_put_off_who_is_missed_by_somebody_that_does_not_come(broker: mongoq.Broker) -> None:
    meeting = Meeting(broker, "a", "b", "c")
    meeting.watch()
    meeting.coming["c"].more = False
    assert meeting.put_off(meeting.push(a=[{"id": 1}])) == []
    assert [payload["id"] for payload in meeting.parked()] == [1]


def test_a_letter_that_has_come_back_is_parked_at_once(broker: mongoq.Broker, raw: Any) -> None:
    """That it is late no more is written once."""
    meeting = Meeting(broker, timeout=60)
    meeting.watch()
    verdicts = meeting.push(a=[{"id": 1}])
    [(item, _)] = verdicts
    raw.update_one({"_id": item.id}, {"$set": {"missed": True}})
    back = with_stored(item, "missed", value=True)
    judged = meeting.consumers["a"].resolver.outcomes(meeting.consumers["a"], [back], None)
    assert meeting.put_off([(back, judged[0])]) == []
    assert [payload["id"] for payload in meeting.parked()] == [1]


def test_a_run_holds_who_is_put_off(broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    more = True
    monkeypatch.setattr(SettleGroup, "is_expecting", lambda *_: more)
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")

    @pipeline.join(["a", "b"], to="out", on="id", lease=3_600)
    def both(a: Any, b: Any) -> Any:
        return a | b

    broker.queue("a").push_many([{"id": 1}, {"id": 2}])
    with pipeline.start(broker) as run:
        until(lambda: is_busy(run))
        broker.queue("b").push({"id": 1, "of": "b"})
        until(lambda: broker.queue("out").size() == 1)
        assert list(pipeline.waiting(broker)) == []
        more = False
        until(lambda: [waiter.item.payload["id"] for waiter in pipeline.waiting(broker)] == [2])
    assert [item.payload for item in broker.queue("out").peek(5)] == [{"id": 1, "of": "b"}]


@pytest.mark.prove
@pytest.mark.parametrize("strangers", [0, 700])
def test_queues_that_are_full_are_joined_to_the_last(site: Site, strangers: int) -> None:
    """Those who are at the head of one queue alone shift all others."""
    pairs = 2_500
    site.queue("a").push_many([*({"id": -n} for n in range(1, strangers + 1)), *({"id": n} for n in range(pairs))])
    site.queue("b").push_many([{"id": n} for n in range(pairs)])
    pipeline = mongoq.Pipeline("graph", errors="graph.errors", outputs="out")

    @pipeline.join(["a", "b"], to="out", on="id", batch=100)
    def both(entries: list[Any]) -> list[Any]:
        return [a["id"] for a, b in entries if a == b]

    site.drain(pipeline)
    assert sorted(item.payload for item in site.queue("out").peek(10_000)) == list(range(pairs))
    waiting = [waiter.item.payload["id"] for waiter in pipeline.waiting(site.broker)]
    assert sorted(waiting) == sorted(-n for n in range(1, strangers + 1))
    assert set(site.broker.queues()) <= {WAITING, "out"}
