"""A shop: a FastAPI app that takes orders, and a worker that ships them, ready to be deployed.

``POST /orders`` stores an order and pushes its job in one transaction. The worker runs in a process of its own, by
``mongoq worker examples.shop.worker:worker``, or in the process of the app. The folder ``deploy`` has files for
containers, systemd and Kubernetes. It needs the extras ``cli``, ``prometheus`` and ``demo``.
"""
