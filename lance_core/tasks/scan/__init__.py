"""Reading on workers: scans, counts and partial aggregates. Start with `read.py`."""
