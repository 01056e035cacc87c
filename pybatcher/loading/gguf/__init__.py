"""GGUF files: header, tensors, metadata, and the model that these describe."""
