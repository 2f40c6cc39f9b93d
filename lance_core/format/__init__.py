"""Table format: converts between the bytes of a Lance table and Python values.

The package holds the framing and naming of manifests, thin views over fragments and data files, transactions and
their operations, the schema with its logical types, feature flags, deletion vectors, row id sequences and index
metadata. It never does I/O, reads no clock, draws no random number and decides no policy. Start with `manifest.py`.
"""
