"""Streaming: a table as the sink of a stream, and as the source of one.

    stream_sink.py         commits each micro-batch as one version, exactly once
    stream_source.py       the operations of a streaming source: offsets, and partitions between them
    offsets.py             positions of a stream in the table
    change_feed.py         the rows that a version adds
    stream_partitions.py   splits the rows between two offsets for workers

This package never imports Spark. The reasons are in `001-exactly-once-batches.md`.
"""
