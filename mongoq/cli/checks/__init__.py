"""Commands that check: ``doctor``, ``health``, and the rights of a ``role``.

Start reading in ``doctor``, which lists the checks of ``server_checks`` and ``queue_checks``.
"""
