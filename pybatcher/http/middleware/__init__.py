"""ASGI middleware: API keys, allowed origins and idempotency keys."""
