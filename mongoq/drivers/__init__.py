"""Drivers: run flows by calling a MongoDB driver, for threads and for asyncio.

``threads`` and ``aio`` run a flow from its first command to its result: start there. ``backend`` knows PyMongo, Motor
and mongomock; ``raw_commands`` and ``sessions`` send commands without the driver's own retries;
``group_commit_*`` lets callers share commands; ``sleep`` lets waiters rest; ``errors`` explains a server's refusals.
"""
