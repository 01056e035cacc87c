"""Benchmarks. Not part of the installed package."""
