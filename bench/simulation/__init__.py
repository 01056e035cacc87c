"""The real scheduler over an engine without a model, in virtual time."""
