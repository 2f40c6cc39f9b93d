"""The bytes of the Lance table format and the values they stand for.

What lives here: framing and naming of manifests, thin views over fragments and data files, transactions and
their operations, the schema with its logical types, feature flags, deletion vectors, row-id sequences.
What never does: I/O, clocks, randomness, policy. Start with `manifest.py`.
"""
