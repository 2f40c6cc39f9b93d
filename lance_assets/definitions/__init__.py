"""Definitions: `lance_table()` and the uniqueness of names and locations within a project."""
