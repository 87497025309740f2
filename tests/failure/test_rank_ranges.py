import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_sm._failure.connection import MAX_LINE
from lightning_sm._failure.rank_ranges import RankRanges, RendezvousState

_ranks = st.sets(st.integers(0, 40))


def _all_of(ranges):
    return {rank for first, last in ranges.ranges for rank in range(first, last + 1)}


@given(_ranks, _ranks, st.integers(1, 45))
def test_they_are_sets(some, others, world_size):
    ranges = RankRanges.of(some)
    assert _all_of(ranges) == some
    assert ranges.count == len(some)
    assert _all_of(ranges.complement(world_size)) == set(range(world_size)) - some
    assert _all_of(ranges.intersection(RankRanges.of(others))) == some & others
    assert RendezvousState.from_message(
        json.loads(json.dumps(RendezvousState(ranges, RankRanges.of(others), ("algo-1",)).to_message()))
    ) == RendezvousState(ranges, RankRanges.of(others), ("algo-1",))


def test_text_is_bounded():
    assert str(RankRanges.of(range(0, 8192, 2))) == "0, 2, 4, 6, 8, 10, 12, 14 and 4088 more"
    assert str(RankRanges.of([*range(8, 16), 3])) == "3, 8-15"


def test_a_message_fits_whatever_the_world():
    worst = RankRanges.of(range(1_000_000, 1_008_192, 2))
    state = RendezvousState(worst, worst, tuple(f"algo-{number}" for number in range(500)))
    assert len(json.dumps({"kind": "rendezvous", **state.to_message()})) < MAX_LINE
    named = RendezvousState(worst, worst, tuple("x" * 255 + str(number) for number in range(500)))
    assert named.to_message()["hosts"] == []
    assert RendezvousState.from_message(json.loads(json.dumps(state.to_message()))).joined.count == 500


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"joined": [], "starting": []},
        {"joined": "0-7", "starting": [], "hosts": []},
        {"joined": [[0]], "starting": [], "hosts": []},
        {"joined": [[1, 0]], "starting": [], "hosts": []},
        {"joined": [[0, 3], [2, 5]], "starting": [], "hosts": []},
        {"joined": [[0, 1 << 40]], "starting": [], "hosts": []},
        {"joined": [[-1, 2]], "starting": [], "hosts": []},
        {"joined": [], "starting": [[True, True]], "hosts": []},
        {"joined": [], "starting": [], "hosts": {"algo-1": 1}},
    ],
)
def test_what_is_no_state(message):
    assert RendezvousState.from_message(message) is None
