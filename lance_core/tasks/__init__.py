"""Distributed tasks: plans that a driver pickles, the functions that workers run, and the driver steps that commit
once.

    driver.py, partitioning.py    shared by all verbs: running a plan, and dividing a version into partitions
    rows/                         append, overwrite, replace where, delete, update, upsert
    columns/                      new columns, computed or merged
    scan/                         scans, counts, partial aggregates
    compaction/  indices/         compaction of one or many tables; index builds
    verification.py               comparison of files with their checksums
    ingest/  streaming/           files that become rows; a table as the sink or the source of a stream

This package holds plan objects with small pickles, the tasks that workers run, and the driver's begin and finish steps
around them. It never imports Spark, Dagster or anything else that decides where a worker runs; `lance_assets.spark`
does that. Start with `rows/delete.py`, which is the shortest example.
"""
