"""Parts that every HTTP API shares: errors, fields, connections, event streams and the context."""
