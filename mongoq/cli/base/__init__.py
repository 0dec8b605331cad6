"""Parts that the commands share: how to connect, what to print, how arguments are read, when to ask.

Start reading in ``connection``, which gives a command its broker, and ``changes``, which asks before a change.
"""
