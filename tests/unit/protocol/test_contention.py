"""How far processes keep apart that claim batches of one queue: as far as their losses say."""

from __future__ import annotations

from mongoq.protocol.state.claim_hints import FORGET_SECONDS, MAX_WIDTH, Contention


def test_who_loses_nothing_stays_at_the_head() -> None:
    contention = Contention()
    for at in range(100):
        contention.record_batch(10, 0, at=at / 100)
        assert contention.skip(10, at=at / 100) == 0


def test_one_loss_is_no_contention() -> None:
    contention = Contention()
    contention.record_batch(10, 10, at=0.0)
    assert (contention.width, contention.skip(10, at=0.0)) == (1, 0)


def test_who_keeps_losing_keeps_away_more_and_more() -> None:
    contention, widths = Contention(), []
    for _ in range(40):
        contention.record_batch(10, 9, at=0.0)
        widths.append(contention.width)
    assert widths == sorted(widths)
    assert widths[-1] == MAX_WIDTH


def test_who_loses_no_more_comes_back_to_the_head() -> None:
    contention = Contention(width=32, lost=0.1, at=0.0)
    for _ in range(400):
        contention.record_batch(10, 0, at=0.0)
    assert (contention.width, contention.lost) == (1, 0.0)


def test_some_loss_is_kept() -> None:
    contention = Contention(width=8, lost=0.1, at=0.0)
    for _ in range(400):
        contention.record_batch(10, 1, at=0.0)
    assert contention.width == 8


def test_each_place_has_its_turn_the_head_too() -> None:
    contention = Contention(width=8, lost=0.1, at=0.0)
    for _ in range(5):
        assert sorted(contention.skip(100, at=0.0) for _ in range(8)) == [100 * place for place in range(8)]


def test_after_a_while_nothing_is_known_of_the_others() -> None:
    contention = Contention(width=8, lost=0.1, at=0.0)
    assert contention.skip(100, at=FORGET_SECONDS + 0.1) == 0
    assert contention.width == 1


def test_beyond_the_end_the_head_comes_next() -> None:
    contention = Contention(width=8, lost=0.1, at=0.0)
    contention.beyond()
    assert contention.width == 4
    assert contention.skip(100, at=0.0) == 0
