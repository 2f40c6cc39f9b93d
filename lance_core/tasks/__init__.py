"""Work that is spread over processes: plans made by a driver, and what a worker does with one.

What lives here: plan objects that pickle small, the functions that workers run, and the driver's begin and finish
around them. What never does: Spark, Dagster, or anything else that decides where a worker runs; `lance_assets.spark`
does. Start with `write.py`.
"""
