"""Definitions: `lance_table()`, and the check that names and locations are unique within a project."""
