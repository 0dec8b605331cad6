"""Lets Spark find ``format("mongoq")``.

Spark imports every top-level module named ``pyspark_…`` of the installed packages and registers the
``DefaultSource`` it finds there. It sees neither ``--py-files`` nor editable installs:
``mongoq.spark.register(spark)`` serves those.
"""

from mongoq.spark.source import MongoqDataSource as DefaultSource

__all__ = ["DefaultSource"]
