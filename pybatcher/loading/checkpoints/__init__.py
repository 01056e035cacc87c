"""Values that every file format is read into: configuration, tensor rules and tensors."""
