"""The serving side of a batcher: from a call to the scheduler, and from its events to a reply."""
