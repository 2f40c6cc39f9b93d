"""Bookshop in YAML: the definitions are in `defs/`."""
