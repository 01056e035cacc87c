"""The HTTP server: its cost, and a comparison with other servers."""
