"""Stored data: items, envelopes and their values. No I/O and no driver, only types of ``bson`` and pydantic."""
