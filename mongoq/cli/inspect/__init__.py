"""Commands that only read: ``queues`` has what is about whole queues, ``items`` what is about their items."""
