"""Hostile clients: the effect of their attacks on a streaming client."""
