"""Parts that model families share: tensor rules, experts, and the keys and names of GGUF files."""
