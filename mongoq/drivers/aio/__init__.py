"""The driver; ``aio`` is the source of ``threads``."""
