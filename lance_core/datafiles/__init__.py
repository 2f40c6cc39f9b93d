"""Data files: Arrow batches to files and back, and the fragments that describe the files.

This package defines the port that a codec implements (`codec.py`) with its two codecs, decides which field is stored
in which column (`column_layout.py`), converts batches to the stored types of a table (`conform.py`), and writes and
reads fragments. It knows neither versions of a table nor commits. Start with `fragment_writer.py` or
`fragment_reader.py`.
"""
