"""Indices: the scalar index types, how their segments are built and searched, and which parts of a filter they
answer."""
