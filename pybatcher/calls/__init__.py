"""Calls of a batcher and their results: the seam between callers and what serves them."""
