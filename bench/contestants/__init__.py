"""The engines that are measured, behind one interface.

Each module has `open_contestant(checkpoint, settings)` and imports nothing of the others, since
each may live in a virtual environment of its own.
"""
