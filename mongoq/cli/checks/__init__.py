"""Commands that check: ``doctor``, ``health``, and the rights of a ``role``.

Start reading in ``doctor``, which has the checks of queues; those of the server are in ``server_checks``.
"""
