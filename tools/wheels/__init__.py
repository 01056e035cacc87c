"""Wheels for many Pythons and two machines, made on one: see `tools/wheels/__main__.py`."""
