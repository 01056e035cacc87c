"""Structured outputs: their cost, and their validity under many schemas."""
