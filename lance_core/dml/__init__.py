"""Data modification (DML): plans changes of existing rows and columns, and of indices, and writes their files.

One module per verb, each with a function from a snapshot to an operation; its files are written when it returns. No
module of this package commits (`commit/write_protocol.py` does) or knows what the operation does to the manifest
(`transactions/apply_rows.py`). Start with `delete.py`.
"""
