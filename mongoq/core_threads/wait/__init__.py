# Generated from mongoq/core/wait/__init__.py by scripts/unasync.py. Do not edit.
"""Waiting until an item is due: ``wait`` decides when a caller asks again, and which events wake it before.

``change_stream`` is the one change stream of a process, read only while a caller waits.
"""
