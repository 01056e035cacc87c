"""The HTTP application of batchers, for clients of OpenAI's and Anthropic's APIs.

    from pybatcher.http import application

    app = application(batcher)                       # any ASGI server runs it
    fastapi_app.mount("/llm", application(batcher))  # or another application serves it

It needs the extra: `pip install 'pybatcher-engine[http]'`.
"""

from __future__ import annotations

from ..errors.distribution import install_extra

try:
    import starlette as _starlette  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"pybatcher.http needs starlette ({error}); {install_extra('http')}"
    ) from error

from .application import application

__all__ = ["application"]
