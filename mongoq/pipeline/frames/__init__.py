"""Batches as frames: what a function on pandas or Arrow is given, and what its rows say of the items."""
