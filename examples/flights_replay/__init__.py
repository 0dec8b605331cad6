"""A day of flights got the weather of the wrong airport, and is run again, by Spark, after the fix.

::

    flights ──> checked ──enrich──> done ──store──> history, and a collection of departures
                   ^                                   │
                   └────────── Spark: the period of the faulty version, less what it did right

Start with :mod:`examples.flights_replay.replay`: what Spark reads, picks and writes. The two versions of the stage are
in :mod:`examples.flights_replay.pipeline`, and what is told of them in :mod:`examples.flights_replay.cli`.
"""
