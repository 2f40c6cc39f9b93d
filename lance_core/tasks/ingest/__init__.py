"""Files of other formats into a table, each of them once, by workers.

What lives here: which files there are and which are new, how their records become the rows of a table, what happens to
those that cannot. What never does: Spark. Start with `ingest.py`; why it is so, says 001-atomic-file-ingest.md.
"""
