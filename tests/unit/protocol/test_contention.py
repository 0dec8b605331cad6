"""How far processes keep apart that claim batches of one queue: as far as their losses say."""

from __future__ import annotations

from mongoq.protocol.state.claim_hints import FORGET_SECONDS, MAX_WIDTH, Contention


def test_who_loses_nothing_stays_at_the_head() -> None:
    crowd = Contention()
    for at in range(100):
        crowd.record_batch(10, 0, at=at / 100)
        assert crowd.skip(10, at=at / 100) == 0


def test_one_loss_is_no_crowd() -> None:
    crowd = Contention()
    crowd.record_batch(10, 10, at=0.0)
    assert (crowd.width, crowd.skip(10, at=0.0)) == (1, 0)


def test_who_keeps_losing_keeps_away_more_and_more() -> None:
    crowd, widths = Contention(), []
    for _ in range(40):
        crowd.record_batch(10, 9, at=0.0)
        widths.append(crowd.width)
    assert widths == sorted(widths)
    assert widths[-1] == MAX_WIDTH


def test_who_loses_no_more_comes_back_to_the_head() -> None:
    crowd = Contention(width=32, lost=0.1, at=0.0)
    for _ in range(400):
        crowd.record_batch(10, 0, at=0.0)
    assert (crowd.width, crowd.lost) == (1, 0.0)


def test_some_loss_is_kept() -> None:
    crowd = Contention(width=8, lost=0.1, at=0.0)
    for _ in range(400):
        crowd.record_batch(10, 1, at=0.0)
    assert crowd.width == 8


def test_each_place_has_its_turn_the_head_too() -> None:
    crowd = Contention(width=8, lost=0.1, at=0.0)
    for _ in range(5):
        assert sorted(crowd.skip(100, at=0.0) for _ in range(8)) == [100 * place for place in range(8)]


def test_after_a_while_nothing_is_known_of_the_others() -> None:
    crowd = Contention(width=8, lost=0.1, at=0.0)
    assert crowd.skip(100, at=FORGET_SECONDS + 0.1) == 0
    assert crowd.width == 1


def test_beyond_the_end_the_head_comes_next() -> None:
    crowd = Contention(width=8, lost=0.1, at=0.0)
    crowd.beyond()
    assert crowd.width == 4
    assert crowd.skip(100, at=0.0) == 0
