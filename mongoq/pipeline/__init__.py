"""Pipelines: graphs of queues, and of the stages between them."""
