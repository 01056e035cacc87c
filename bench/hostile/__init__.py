"""Hostile clients: what a streaming client notices of their attacks."""
