"""Decoders with LayerNorm instead of RMSNorm."""
