"""The server process: it owns the clients, and supervises the worker that owns the engine."""
