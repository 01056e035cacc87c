from __future__ import annotations

import pytest

from pybatcher.loading import open_model
from pybatcher.text import Tokenizer
from pybatcher.text.grammars import GrammarCompiler

VOCAB = 2048


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Of the shipped model."""
    parts = open_model(None).tokenizer
    return Tokenizer(parts.backend, eos_token_ids=parts.eos_token_ids)


@pytest.fixture
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, VOCAB)
