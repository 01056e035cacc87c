"""Conversion of stored weights to the formats that the engine computes with."""
