"""Models that were trained to embed, as sentence-transformers saves them, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedder_files import write_modules

from pybatcher import Batcher, InvalidRequestError
from pybatcher.testing.checkpoints import make_checkpoint, make_module

TEXTS = [[(i * 37 + 5) % 300 for i in range(n)] for n in (1, 9, 290)]
CLOSE = 1e-4


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3-Embedding's files: a model without a head, last-token pooling, vectors of length 1."""
    path = tmp_path_factory.mktemp("embedder") / "qwen3-embedding"
    make_checkpoint(path, "qwen3", seed=3)
    (path / "model.safetensors").unlink()
    make_module("qwen3", seed=3).model.save_pretrained(path)
    assert json.loads((path / "config.json").read_text())["architectures"] == ["Qwen3Model"]
    write_modules(path, "pooling_mode_lasttoken", normalize=True)
    return path


def link_all(directory: Path, target: Path) -> None:
    """Link the files of a checkpoint, but for sentence-transformers' own."""
    for file in directory.glob("*.*"):
        if file.name != "modules.json":
            (target / file.name).symlink_to(file)


def states(text: list[int]) -> Any:
    """Of each token after the last norm, (len(text), hidden)."""
    with torch.no_grad():
        module = make_module("qwen3", seed=3).model
        return module(torch.tensor([text])).last_hidden_state[0].numpy()


def unit(vector: Any) -> Any:
    return vector / np.linalg.norm(vector)


async def test_embed_does_what_the_files_say(directory: Path, one_thread: None) -> None:
    async with Batcher(directory, n_ctx=1024) as batcher:
        found = await batcher.embed(TEXTS)
        last = await batcher.embed(TEXTS, pooling="last")
        mean = await batcher.embed(TEXTS, pooling="mean")
        one, other = await batcher.embed(["the fox", "a river"])
    for i, text in enumerate(TEXTS):
        expected = states(text)
        assert np.abs(found[i].vector - unit(expected[-1])).max() < CLOSE
        assert np.abs(last[i].vector - expected[-1]).max() < CLOSE * np.linalg.norm(expected[-1])
        scale = np.linalg.norm(expected, axis=1).mean()
        assert np.abs(mean[i].vector - expected.mean(axis=0)).max() < CLOSE * scale
    assert abs(np.linalg.norm(one.vector) - 1) < 1e-6
    assert abs(one.vector @ other.vector) < 1 - 1e-3


async def test_pooling_by_the_mean(directory: Path, tmp_path: Path, one_thread: None) -> None:
    link_all(directory, tmp_path)
    write_modules(tmp_path, "pooling_mode_mean_tokens", normalize=False)
    async with Batcher(tmp_path, n_ctx=1024) as batcher:
        (found,) = await batcher.embed(TEXTS[1:2])
    expected = states(TEXTS[1]).mean(axis=0)
    assert np.abs(found.vector - expected).max() < CLOSE * np.linalg.norm(expected)


async def test_without_a_head_nothing_is_generated(directory: Path) -> None:
    said = "'qwen3-embedding' has no head and no tied embedding.* it embeds"
    async with Batcher(directory, n_ctx=256) as batcher:
        with pytest.raises(InvalidRequestError, match=said):
            await batcher.generate("the fox", max_tokens=1)
        with pytest.raises(InvalidRequestError, match=said):
            await batcher.chat([{"role": "user", "content": "Hello"}], max_tokens=1)
        with pytest.raises(InvalidRequestError, match=said):
            await batcher.score("the fox", [" ran"])
        await batcher.embed(["the fox"])


async def test_a_tied_embedding_is_a_head(tmp_path: Path) -> None:
    """As Qwen3-Embedding is published: with the names of a model without a head, and tied."""
    module = make_module("qwen3", seed=3, tie_word_embeddings=True)
    module.model.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    assert fields["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(
        json.dumps({**fields, "architectures": ["Qwen3ForCausalLM"]})
    )
    async with Batcher(tmp_path, n_ctx=256) as batcher:
        completion = await batcher.generate(TEXTS[1], max_tokens=3, ignore_eos=True)
    with torch.no_grad():
        expected = int(module(torch.tensor([TEXTS[1]])).logits[0, -1].argmax())
    assert completion.token_ids[0] == expected
