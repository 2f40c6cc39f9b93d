"""Vector indices: segments of partitions and codes, and the search that combines them with exact distances. Start with
`search.py`."""
