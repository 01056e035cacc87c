"""The server's end of one client's connection."""
