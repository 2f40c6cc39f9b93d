"""Reading a version: `plan.py` decides what to read, without I/O; `read.py` reads it. Neither ever writes."""
