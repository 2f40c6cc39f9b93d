"""Manifest stores: databases that decide which of two concurrent writers commits a version.

`manifest_store.py` has the interface, which `dynamodb.py` and `sql.py` implement. `two_phase.py` is the commit
protocol: a `Store` that reserves a version before it writes the manifest. Without a manifest store, the store of the
table itself decides, with a conditional put. This package does not read the contents of manifests.
"""
