"""`kvist bench router`: what the router's parts cost, alone or beside a peer doing the same work in the same run.

Measured here: `index` (hash, match, store, remove, memory), `choice` (choose and reserve), `ingest` (events over ZMQ).
`workload` makes what both sides are given, `peer` drives the other side, `run` interleaves, `report` writes.
"""
