"""Drivers: run operations by calling a MongoDB driver, for threads and for asyncio.

Start with ``aio.driver``: it runs an operation from its first command to its result; brokers and queues inherit its
runner. ``threads`` is generated from ``aio`` by ``scripts/unasync.py``. What differs by nature is written by hand for
each: ``performer_*`` sends the commands of one caller, with tasks and cancellations or with threads and signals;
``group_commit_*`` lets callers share commands.

``backend`` knows PyMongo, Motor and mongomock, and builds commands for which the server keeps no record; ``sessions``
keeps track of transactions; ``sleep`` lets waiters rest; ``errors`` explains a server's refusals.
"""
