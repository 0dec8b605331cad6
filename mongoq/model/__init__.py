"""What is stored: items, envelopes, and the values in them. No I/O, no driver; ``bson`` is the only outside type."""
