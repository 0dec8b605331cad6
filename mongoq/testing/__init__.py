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

from mongoq.testing.async_broker import AsyncVirtualBroker
from mongoq.testing.async_worker import AsyncVirtualWorker
from mongoq.testing.broker import VirtualBroker
from mongoq.testing.result import NeverIdle, Result
from mongoq.testing.worker import VirtualWorker

__all__ = ["AsyncVirtualBroker", "AsyncVirtualWorker", "NeverIdle", "Result", "VirtualBroker", "VirtualWorker"]
