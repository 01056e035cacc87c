"""Calls of a batcher and their results: the interface between callers and services."""
