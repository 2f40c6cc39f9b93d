"""Row changes on workers: append, overwrite, replace-where, delete, update and upsert. Start with `write.py`."""
