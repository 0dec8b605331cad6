"""Waiting for an item: a caller asks once, and then again only when an event makes it worthwhile."""
