"""Encoders, which see both sides of a token and only embed."""
