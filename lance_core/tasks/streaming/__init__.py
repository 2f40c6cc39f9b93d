"""A table as the end of a stream, and as the beginning of one.

    stream_sink.py                          a batch becomes a version, once
    offsets.py, change_feed.py, parts.py   how far a reader is, what came since, and its cutting into parts
    reading.py                          all of that, as a source asks for it

What never lives here: Spark. Why it is so, says 001-exactly-once-batches.md.
"""
