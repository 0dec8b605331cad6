"""Batches as pandas or Arrow frames: the frame that a handler takes, and the outcomes that its rows mean."""
