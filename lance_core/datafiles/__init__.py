"""Arrow batches to data files and back, and the fragments that describe them.

What lives here: the port that a codec fills (`codec.py`) with its two codecs, which field sits in which
column (`column_layout.py`), bringing batches into the table's stored types (`conform.py`), writing and reading
fragments. What never does: versions of a table, commits. Start with `write.py` or `read.py`.
"""
