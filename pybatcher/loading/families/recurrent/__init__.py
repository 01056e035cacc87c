"""Decoders most of whose layers are recurrent, and have no KV."""
