"""Indices: what each kind is, how it is built and searched, and which part of a filter it answers."""
