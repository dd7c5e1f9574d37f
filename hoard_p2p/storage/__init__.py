"""What one machine keeps: slabs with chunk bytes, the index that finds them, and the journal that can rebuild it.

`store.Store` is the one owner, in the node; `reader.StoreReader` reads from any process; `writer.ChunkWriter` writes
chunks, in the node or in a worker that reaches the node through a `SlabBroker`. Nothing here knows peers or mounts.
"""
