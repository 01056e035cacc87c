"""A model that calls tools and thinks; for tests of the Messages API, it served, and clients.

Tests of other APIs have a `batcher` and a `client` of their own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_model import chat_model
from messages_server import MessagesServer, messages_server

from pybatcher import Batcher


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("chat"))


@pytest.fixture
async def server(model: Path) -> AsyncIterator[MessagesServer]:
    async with messages_server(model) as one:
        yield one


@pytest.fixture
def client(server: MessagesServer) -> Any:
    return server.client


@pytest.fixture
def plain(server: MessagesServer) -> httpx.AsyncClient:
    return server.plain


@pytest.fixture
def batcher(server: MessagesServer) -> Batcher:
    return server.batcher
