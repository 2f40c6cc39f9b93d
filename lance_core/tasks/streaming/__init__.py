"""A table as the end of a stream, and as the beginning of one.

    writing.py                          a batch becomes a version, once
    offsets.py, new_rows.py, parts.py   how far a reader is, what came since, and its cutting into parts
    reading.py                          all of that, as a source asks for it

What never lives here: Spark. Why it is so, says 001-exactly-once-batches.md.
"""
