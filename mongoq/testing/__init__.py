"""Tests of handlers without a server: virtual brokers, on a clock that the test moves, and workers that run by hand.

```python
virtual = VirtualBroker()
worker = virtual.worker()
app.register(worker)  # the consumers of production

virtual.queue("orders").push({"id": 1})
result = worker.run_one("orders")
assert result.outcome == "done"
```

This needs mongomock, from the extra ``testing``. The fixtures for pytest are in the top-level module ``pytest_mongoq``,
which pytest finds by itself.
"""

from mongoq.testing.broker import AsyncVirtualBroker, VirtualBroker
from mongoq.testing.station import NeverIdle, Result
from mongoq.testing.worker import AsyncVirtualWorker, VirtualWorker

__all__ = ["AsyncVirtualBroker", "AsyncVirtualWorker", "NeverIdle", "Result", "VirtualBroker", "VirtualWorker"]
