"""What can be asked of a batcher, and what comes back: the seam between callers and servers."""
