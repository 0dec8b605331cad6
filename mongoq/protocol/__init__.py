"""What each operation sends, as pure descriptions and flows. No I/O and no driver; ``bson`` is allowed."""
