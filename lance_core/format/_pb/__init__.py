"""The wire messages, compiled from `protos/lance/` by `python tools/protos.py`; only this text is by hand.

`file_pb2`, `table_pb2`, `transaction_pb2` and `rowids_pb2` hold what a table is made of. Details of indices
are where their type URL says: package `lance.table` (BTREE, BITMAP, full text search, fragment reuse, MemWAL)
in `table_pb2`, package `lance.index.pb` (vectors, bloom filter, JSON) in `index_pb2`. Nothing outside
`format/` sees these modules. Start with `protos/lance/table.proto`.
"""
