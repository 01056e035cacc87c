"""The engines that are measured, behind one interface.

Each module has `open_contestant(checkpoint, settings)`, for speed step by step, or
`open_server(checkpoint, settings)`, for requests that come when they please. A module imports
nothing of the other engines, since each may live in a virtual environment of its own.
"""
