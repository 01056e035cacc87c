"""Decoders that are published as mixtures of experts alone."""
