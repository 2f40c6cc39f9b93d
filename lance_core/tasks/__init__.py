"""Distributed tasks: plans that a driver pickles, the functions that workers run, and the driver steps that commit
once.

This package holds plan objects that pickle small, the tasks that workers run, and the driver's begin and finish steps
around them. It never imports Spark, Dagster or anything else that decides where a worker runs; `lance_assets.spark`
does that. Start with `write.py`.
"""
