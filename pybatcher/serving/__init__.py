"""The serving side of a batcher: passes calls to the scheduler, and its events to replies."""
