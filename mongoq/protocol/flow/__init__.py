"""What a flow may yield, and how its items are cut into commands.

``commands`` has the commands and the pauses that a driver understands: start there. ``event`` has the event that a
flow sets and a driver waits for. ``chunking`` cuts many items into commands and combines their errors.
"""
