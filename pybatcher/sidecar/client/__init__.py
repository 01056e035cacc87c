"""The client of a sidecar: its connection, and the calls of a batcher over it."""
