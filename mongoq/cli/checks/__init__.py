"""Commands that check: ``doctor``, ``health``, and the rights of a ``role``.

Start reading in ``doctor``, which has all checks.
"""
