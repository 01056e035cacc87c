"""The contents of a checkpoint, in any file format: configuration, tensor rules and tensors."""
