"""The calls of a batcher for other threads and event loops, and for code without asyncio."""
