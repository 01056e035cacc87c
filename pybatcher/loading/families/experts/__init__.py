"""Decoders that are published only as mixtures of experts."""
