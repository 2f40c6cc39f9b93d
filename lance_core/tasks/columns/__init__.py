"""New columns on workers: computed by a function, or merged from a DataFrame by row address or key.

Start with `map_columns.py`.
"""
