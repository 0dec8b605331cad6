"""What the rules choose from."""

from __future__ import annotations

import hypothesis.strategies as st

from tests.model.world import CONSUMERS, POOL

TWO = st.sampled_from([0, 1])
ANY = st.sampled_from([0, 1, 0, 1, 0, 1, 2, 3])
"""A queue by its number: mostly one of the two, else one of their dead queues."""
PAYLOADS = st.sampled_from([{"n": 0}, {"n": 1}, {"n": 2}, 7, None])
DUES = st.sampled_from([None, None, None, 0, 2, 15, -5])
"""Seconds from now; negative ones are given as a time that is over."""
DELAYS = st.sampled_from([0, 0, 3, 20])
PRIORITIES = st.sampled_from([0, 0, 0, -1, 5])
HEADERS = st.sampled_from([None, None, {"h": 1}])
KEYS = st.sampled_from(["k", "l"])
ONCE = st.sampled_from([None, 20, 100])
"""Seconds for which an id is remembered; a week unless given."""
LEASES = st.sampled_from([None, None, 5, 100])
ERRORS = st.sampled_from([None, "broken", ValueError("odd")])
CONSUMER = st.integers(0, CONSUMERS - 1)
NUMBER = st.integers(0, 63)
"""Chooses one of what there is."""
MASK = st.just(255) | st.integers(1, 255)
"""Chooses some of what there is."""
SLOT = st.integers(0, POOL - 1)
