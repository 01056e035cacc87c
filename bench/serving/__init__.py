"""Batchers and sidecars under load: latency, faults, leaks."""
