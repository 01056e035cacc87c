"""Tools of a request: their schemas, Python functions as tools, and the tool choice."""
