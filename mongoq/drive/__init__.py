"""Who sends it: the only code that calls a MongoDB driver."""
