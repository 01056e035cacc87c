"""Encoders, whose attention is not causal and which only embed."""
