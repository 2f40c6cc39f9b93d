"""Who decides between two writers of one version, where that is not left to the store of the table.

`manifest_store.py` says what such a decider answers; `dynamodb.py` and `sql.py` are two. `two_phase.py` is the protocol
around it: a store of a table like any other, except that a version is reserved before it is put. Without a manifest
store the store of the table decides, by putting only what is not there. What a manifest says is no matter here.
"""
