"""One trace of a flight through threads, asyncio and Spark, as a picture: ``python -m examples.trace``."""
