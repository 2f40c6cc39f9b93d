"""Changes to rows and columns that are there: what each plans and writes. The result is an operation; committing it is
`commit/write_protocol.py`'s, and what it does to the manifest `transactions/apply_rows.py`'s.

One module per verb, each with one function from a snapshot to an operation, whose files are written when it returns.
"""
