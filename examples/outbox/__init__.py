"""The transactional outbox: an order and its queue item in one commit, and one commit that ships it."""
