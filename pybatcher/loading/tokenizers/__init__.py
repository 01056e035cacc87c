"""Tokenizers of checkpoints: tokenizer.json, SentencePiece models, vocabularies of GGUF files."""
