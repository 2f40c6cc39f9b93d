"""Index builds on workers: partial segments, their merge and the one commit. Start with `index_build.py`."""
