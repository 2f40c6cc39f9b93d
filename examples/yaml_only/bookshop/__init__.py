"""A bookshop in YAML; see `defs/`."""
