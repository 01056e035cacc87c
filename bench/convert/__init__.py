"""Checkpoints in the shapes of published models, and their conversion for other engines."""
