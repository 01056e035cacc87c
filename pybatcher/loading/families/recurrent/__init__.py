"""Decoders with many recurrent layers, which have a state of fixed size instead of KV."""
