"""Grammars that constrain a model's output to its format, tools and schema."""
