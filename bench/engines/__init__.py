"""The measured engines, behind one interface.

Each module has `open_engine(checkpoint, settings)`, for speed step by step, or
`open_server(checkpoint, settings)`, for requests that arrive over time. A module imports nothing of
the other engines, since each may live in a virtual environment of its own.
"""
