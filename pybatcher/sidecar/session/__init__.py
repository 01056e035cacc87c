"""The serving end of one client's connection."""
