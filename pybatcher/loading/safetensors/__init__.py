"""Hugging Face directories: safetensors files, quantised weights, sentence-transformers."""
