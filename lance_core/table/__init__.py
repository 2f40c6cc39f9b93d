"""The public table: `Table`, the results of its writers, branches, clones and the migration of manifest names.

A method is a few lines that call a lower package. Start with `table.py`.
"""
