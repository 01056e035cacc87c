"""Responses of chat models in their parts: content, reasoning, calls of tools."""
