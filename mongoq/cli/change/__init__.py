"""Commands that change what is stored: push, replay, repair dead letters, settings, deletion, export and import.

Start reading in ``dead``; each command counts first, asks, and then reports what it did.
"""
