"""The claims that a campaign on sequences is judged by, and that each of them can be broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.crash.ordered.judge import Story, broken, expired, lost, out_of_order, overlapping, unfenced
from tests.crash.ordered.notes import Note

ONE, TWO, THREE = ("one",), ("two",), ("three",)


def note(at: float, kind: Any, serials: tuple[str, ...] = (), **more: Any) -> Note:
    sequence = "a" if kind in ("push", "began", "popped") and serials else None
    lease = {"until": at + 4} if kind == "began" else {}
    return Note(**{"at": at, "who": 1, "kind": kind, "serials": serials, "sequence": sequence, **lease, **more})


PUSHES = [note(0, "push", ONE), note(1, "pushed", ONE), note(2, "push", TWO), note(3, "pushed", TWO)]
FIRST = [note(4, "began", ONE), note(5, "ended", ONE, outcome="done"), note(6, "settled", ONE)]
SECOND = [note(7, "began", TWO), note(8, "ended", TWO, outcome="done")]
GOOD = [*PUSHES, *FIRST, *SECOND]


def violations(claim: Callable[[Story], Iterator[str]], *notes: Note, dead: tuple[str, ...] = ()) -> list[str]:
    return list(claim(Story(sorted(notes, key=lambda each: each.at), dead)))


def test_a_run_that_was_killed_and_repeated_breaks_no_claim() -> None:
    killed = [note(3.5, "began", ONE, who=2), note(3.6, "killed", who=2)]
    assert violations(lambda story: iter(broken(story)), *GOOD, *killed) == []


def test_two_pushes_at_once_have_no_order() -> None:
    together = [note(0, "push", ONE), note(1, "push", TWO), note(2, "pushed", ONE), note(3, "pushed", TWO)]
    assert violations(out_of_order, *together, note(4, "began", TWO), note(5, "ended", TWO), *FIRST[1:]) == []


def test_an_item_that_overtakes_an_earlier_one() -> None:
    early = [note(3.5, "began", TWO), note(3.6, "ended", TWO, outcome="done")]
    assert "two began before one" in violations(out_of_order, *PUSHES, *FIRST, *early)[0]


def test_an_item_that_overtakes_the_retry_of_a_failed_one() -> None:
    failed = [note(4, "began", ONE), note(5, "ended", ONE, outcome="fail")]
    again = [note(9, "began", ONE), note(10, "ended", ONE, outcome="done")]
    assert "two began before one" in violations(out_of_order, *PUSHES, *failed, *SECOND, *again)[0]


def test_two_runs_at_a_time() -> None:
    assert violations(overlapping, *PUSHES, *FIRST, note(4.5, "began", TWO), note(4.6, "ended", TWO))
    assert not violations(overlapping, *GOOD)


def test_a_run_counts_to_the_end_of_its_lease_at_most() -> None:
    slow = [note(4, "began", ONE, until=5.0), note(9, "ended", ONE, outcome="done")]
    assert not violations(overlapping, *PUSHES, *slow, *SECOND)
    assert violations(overlapping, *PUSHES, note(4, "began", ONE), *SECOND)


def test_a_popped_item_is_over_when_the_pop_began() -> None:
    popped = [note(4, "pop"), note(9, "popped", ONE)]
    assert not violations(out_of_order, *PUSHES, *popped, *SECOND)
    assert violations(out_of_order, *PUSHES, note(7.5, "pop"), note(9, "popped", ONE), *SECOND)
    assert violations(out_of_order, *PUSHES, *FIRST, note(3.1, "pop", who=2), note(3.2, "popped", TWO, who=2))


def test_an_item_that_is_gone() -> None:
    assert violations(lost, *PUSHES, *FIRST)
    assert violations(lost, *PUSHES, *FIRST, note(7, "began", TWO), note(8, "killed"))
    assert not violations(lost, note(0, "push", ONE))


def test_an_interrupted_pop_takes_one_item_at_most() -> None:
    assert not violations(lost, *PUSHES, *FIRST, note(7, "pop"), note(8, "killed"))
    assert not violations(lost, *PUSHES, *FIRST, note(7, "pop"), note(8, "broken"))
    assert violations(
        lost, *PUSHES, note(3, "push", THREE), note(4, "pushed", THREE), note(7, "pop"), note(8, "broken")
    )


def test_an_item_that_has_died_too_early() -> None:
    assert violations(lost, *PUSHES, *FIRST, *SECOND[:1], dead=TWO)


FAILED = [note(4, "began", ONE), note(5, "ended", ONE, outcome="fail")]


def overtaking(*notes: Note, dead: tuple[str, ...] = ()) -> list[str]:
    """What ``out_of_order`` finds where letters hold their sequences."""
    return list(out_of_order(Story(sorted([*PUSHES, *notes], key=lambda each: each.at), dead, holds=True)))


def test_an_item_that_overtakes_a_letter_which_holds_its_sequence() -> None:
    assert not violations(out_of_order, *PUSHES, *FAILED, *SECOND, dead=ONE)
    assert overtaking(*FAILED, *SECOND, dead=ONE)
    assert not overtaking(*FAILED, note(6, "remove", ONE), note(6.5, "removed", ONE), *SECOND)
    assert overtaking(*FAILED, *SECOND, note(9, "remove", ONE), note(10, "removed", ONE))
    again = [note(9, "began", ONE), note(10, "ended", ONE, outcome="done")]
    assert overtaking(*FAILED, note(6, "replayed", ONE), *SECOND, *again)
    mended = [note(6, "replayed", ONE), note(6.2, "began", ONE), note(6.4, "ended", ONE, outcome="done")]
    assert not overtaking(*FAILED, *mended, *SECOND)


def test_a_removal_that_failed_frees_nothing() -> None:
    failed = [note(5.1, "remove", ONE), note(6, "began", ONE), note(6.5, "ended", ONE, outcome="fail")]
    assert overtaking(*FAILED, *failed, *SECOND, note(9, "remove", ONE))
    assert not overtaking(*FAILED, note(5.1, "remove", ONE), *SECOND, note(9, "remove", ONE))


def test_a_run_after_the_letter_was_taken_away() -> None:
    gone = [note(6, "remove", ONE), note(6.5, "removed", ONE)]
    assert "taken away" in violations(unfenced, *PUSHES, *FAILED, *gone, note(9, "began", ONE))[0]
    assert not violations(lost, *PUSHES, *FAILED, *gone, *SECOND)


def test_an_item_that_was_handed_out_and_has_expired() -> None:
    def judged(*notes: Note) -> list[str]:
        return list(expired(Story(sorted(notes, key=lambda each: each.at), (), TWO)))

    timed = [*PUSHES[:2], note(2, "push", TWO, expires=True), note(3, "pushed", TWO), *FIRST]
    assert judged(*timed) == []
    assert "handed out" in judged(*timed, note(7, "began", TWO))[0]
    assert "handed out" in judged(*timed, note(7, "pop"), note(8, "popped", TWO))[0]
    assert "no time" in judged(*PUSHES, *FIRST)[0]
    assert not violations(lost, *PUSHES[:2], *FIRST)


def test_a_run_after_the_commit_or_the_pop() -> None:
    assert "after its commit" in violations(unfenced, *GOOD, note(9, "began", ONE))[0]
    popped = [note(9, "pop"), note(10, "popped", TWO), note(11, "began", TWO)]
    assert "after it was popped" in violations(unfenced, *PUSHES, *popped)[0]
    twice = [note(9, "pop"), note(10, "popped", TWO), note(11, "pop"), note(12, "popped", TWO)]
    assert "after it was popped" in violations(unfenced, *PUSHES, *twice)[0]


def test_an_item_from_nowhere_or_of_another_sequence() -> None:
    assert violations(unfenced, *PUSHES, note(9, "began", THREE))
    assert violations(unfenced, *PUSHES, note(9, "began", ONE, sequence="b"))
