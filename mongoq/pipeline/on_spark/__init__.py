"""The Spark engine: the stages and sources of a pipeline run as workers in Spark's executors.

Executors work against MongoDB as workers do; Spark keeps no state of a run except where its tasks are. In a ``task``,
an engine of threads runs the stages in the executor's Python process until nothing is left, or for some seconds, and
then returns its counts. The ``scheduler``, threads of the driver, starts task after task. A process that is killed
leaves its items to their leases, as a worker does. ``run`` ties these together: start there.

Stages on DataFrames are streaming queries, whose batches are settled item by item. ``frame_query`` runs one: for each
batch it calls the function, and finds the items that fail it. ``frame_settler`` reads the outcomes in the rows that the
function returned, and settles the items.
"""
