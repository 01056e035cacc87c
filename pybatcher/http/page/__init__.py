"""The page at /: its files and the handlers that serve them."""
