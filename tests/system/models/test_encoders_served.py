"""Encoders behind every way in: what they refuse by name, while others are embedded beside it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from embedder_files import write_modules
from http_served import served
from safetensors.numpy import save_file
from small_sidecar import sidecar
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from pybatcher import (
    Batcher,
    BlockingBatcher,
    Client,
    ConfigError,
    InvalidRequestError,
    RequestTooLongError,
)
from pybatcher.http import application
from pybatcher.testing.checkpoints import make_checkpoint, make_module

WORDS = ("the", "fox", "ran", "a", "river", "##s", "is", "wide")
CLOSE = 1e-4
SAID = "is an encoder, so that it can neither generate nor score: it embeds"
TEXTS = [[5 + (i * 37 + n) % 300 for i in range(n)] for n in (3, 40, 290, 7)]
MODEL = "bert-small"
MESSAGES: Any = [{"role": "user", "content": "the fox"}]


def word_pieces() -> Tokenizer:
    """WordPiece as BERT has it: [CLS] before a text and [SEP] after it."""
    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS)
    vocabulary = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=special
    )
    return tokenizer


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_checkpoint(tmp_path_factory.mktemp("encoders") / MODEL, "bert", seed=2)
    word_pieces().save(str(path / "tokenizer.json"))
    write_modules(path, "pooling_mode_cls_token", normalize=True)
    return path


def states(text: list[int]) -> Any:
    with torch.no_grad():
        module = make_module("bert", seed=2)
        return module(torch.tensor([text])).last_hidden_state[0].numpy()


async def test_texts_are_embedded_as_the_files_say(directory: Path, one_thread: None) -> None:
    async with Batcher(directory, n_ctx=1024) as batcher:
        found = await batcher.embed(["The fox ran", "the RIVERS", *TEXTS])
        mean = await batcher.embed(TEXTS, pooling="mean")
        (again,) = await batcher.embed(TEXTS[2:3])
        assert await batcher.tokenize("The fox ran") == (2, 4, 5, 6, 3)
    tokens = [[2, 4, 5, 6, 3], [2, 4, 8, 9, 3], *TEXTS]
    for text, embedding in zip(tokens, found, strict=True):
        expected = states(text)[0]
        assert np.abs(embedding.vector - expected / np.linalg.norm(expected)).max() < CLOSE
        assert (embedding.prompt_tokens, embedding.cached_tokens) == (len(text), 0)
    for text, embedding in zip(TEXTS, mean, strict=True):
        expected = states(text).mean(0)
        assert np.abs(embedding.vector - expected).max() < CLOSE * np.linalg.norm(expected)
    assert again.cached_tokens == 0, "the KV of a prefix depends on what follows"
    assert again.vector.tobytes() == found[4].vector.tobytes()


async def test_settings_of_sentence_transformers(directory: Path, tmp_path: Path) -> None:
    """A limit of tokens, lower case, a prompt before texts, and vectors that are cut."""
    path = tmp_path / MODEL
    shutil.copytree(directory, path)
    pieces = word_pieces()
    pieces.normalizer = normalizers.BertNormalizer(lowercase=False)
    pieces.save(str(path / "tokenizer.json"))
    files: dict[str, Any] = {
        "sentence_bert_config.json": {"max_seq_length": 5, "do_lower_case": True},
        "config_sentence_transformers.json": {
            "truncate_dim": 7,
            "prompts": {"query": "THE "},
            "default_prompt_name": "query",
        },
    }
    for name, fields in files.items():
        (path / name).write_text(json.dumps(fields))
    async with Batcher(directory, n_ctx=1024) as plain, Batcher(path, n_ctx=1024) as batcher:
        whole = await plain.embed("the fox ran")
        found = await batcher.embed("FOX RAN")
        assert found.vector.tobytes() == whole.vector[:7].tobytes()
        too_long = "texts\\[1\\] has 6 tokens; .*max_seq_length. allow 5: .*truncate=True"
        with pytest.raises(RequestTooLongError, match=too_long):
            await batcher.embed(["fox", "fox ran fox"])
        with pytest.raises(RequestTooLongError, match=r"characters, .*max_seq_length. allow 5"):
            await batcher.embed(["fox " * 2000], pooling="mean")
        cut = await batcher.embed(["fox ran fox", [2, 4, 5, 6, 3, 9]], truncate=True)
        assert [one.vector.tobytes() for one in cut] == [found.vector.tobytes()] * 2
        (short,) = await batcher.embed(["fox ran"], truncate=4)
        assert short.vector.tobytes() == (await batcher.embed("fox")).vector.tobytes()
        assert len((await batcher.embed("fox", pooling="cls")).vector) > 7


async def test_a_padding_token_in_a_text_of_a_roberta_is_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "xlm_roberta", seed=2)
    async with Batcher(tmp_path, n_ctx=1024) as batcher:
        with pytest.raises(InvalidRequestError, match=r"texts\[1\] has the padding token 1"):
            await batcher.embed([[5, 6], [5, 1, 6]])
        assert len(await batcher.embed([[5, 6]])) == 1


async def test_a_live_module_is_pooled_by_the_mean(one_thread: None) -> None:
    async with Batcher.from_torch(make_module("bert", seed=2), word_pieces()) as batcher:
        text, ids = await batcher.embed(["the fox", [2, 4, 5, 3]])
    assert text.vector.tobytes() == ids.vector.tobytes()
    expected = states([2, 4, 5, 3]).mean(0)
    assert np.abs(text.vector - expected).max() < CLOSE * np.linalg.norm(expected)


async def test_embedding_gemma_with_its_dense_layers(tmp_path: Path, one_thread: None) -> None:
    make_checkpoint(tmp_path, "embedding_gemma", seed=2)
    write_modules(tmp_path, "pooling_mode_mean_tokens", normalize=True, n_dense=2)
    rng = np.random.default_rng(1)
    layers = []
    for number, shape in ((2, (160, 96)), (3, (96, 160))):
        folder = tmp_path / f"{number}_Dense"
        folder.mkdir()
        layers.append(rng.normal(0, 0.2, shape).astype(np.float32))
        save_file({"linear.weight": layers[-1]}, folder / "model.safetensors")
        fields = {
            "in_features": shape[1],
            "out_features": shape[0],
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        (folder / "config.json").write_text(json.dumps(fields))
    module = make_module("embedding_gemma", seed=2)
    async with Batcher(tmp_path, n_ctx=1024) as batcher:
        found = await batcher.embed(TEXTS)
        plain = await batcher.embed(TEXTS, pooling="mean")
        with pytest.raises(InvalidRequestError, match=SAID):
            await batcher.generate("the fox", max_tokens=1)
    for text, embedding, mean in zip(TEXTS, found, plain, strict=True):
        with torch.no_grad():
            pooled = module(torch.tensor([text])).last_hidden_state[0].mean(0).numpy()
        assert np.abs(mean.vector - pooled).max() < CLOSE * np.linalg.norm(pooled)
        expected = layers[1] @ (layers[0] @ pooled)
        assert np.abs(embedding.vector - expected / np.linalg.norm(expected)).max() < CLOSE


Asked = Callable[[Any], Awaitable[object]]
REFUSED: dict[str, Asked] = {
    "generate": lambda b: b.generate("the fox", max_tokens=1),
    "stream": lambda b: whole(b.stream("the fox", max_tokens=1)),
    "chat": lambda b: b.chat(MESSAGES, max_tokens=1),
    "score": lambda b: b.score("the fox", [" ran"]),
}


async def whole(stream: Any) -> None:
    async for _ in stream:
        pass


async def refuses_beside_others(batcher: Any) -> None:
    """Each call is refused alone: those who embed at that time get what they get alone."""
    alone = [(await batcher.embed([text]))[0].vector.tobytes() for text in TEXTS]
    beside = asyncio.create_task(batcher.embed(TEXTS * 5))
    for ask in REFUSED.values():
        with pytest.raises(InvalidRequestError, match=SAID):
            await ask(batcher)
    with pytest.raises(InvalidRequestError, match="of a prefix depends on what follows"):
        await batcher.add_prefix("the fox", name="fox")
    with pytest.raises(RequestTooLongError):
        await batcher.embed([[5] * 513])
    assert [embedding.vector.tobytes() for embedding in await beside] == alone * 5


async def test_what_is_refused_by_a_batcher(directory: Path) -> None:
    async with Batcher(directory, n_ctx=1024) as batcher:
        await refuses_beside_others(batcher)


async def test_what_is_refused_by_a_sidecar(directory: Path, tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    async with (
        Batcher(directory, n_ctx=1024) as batcher,
        sidecar(socket, batcher),
        Client(socket) as client,
    ):
        await refuses_beside_others(client)


def test_what_is_refused_without_asyncio(directory: Path) -> None:
    with BlockingBatcher(directory, n_ctx=1024) as batcher:
        for ask in (
            lambda: batcher.generate("the fox", max_tokens=1),
            lambda: list(batcher.stream("the fox", max_tokens=1)),
            lambda: batcher.chat(MESSAGES, max_tokens=1),
            lambda: batcher.score("the fox", [" ran"]),
        ):
            with pytest.raises(InvalidRequestError, match=SAID):
                ask()
        assert len(batcher.embed(["the fox"])) == 1


async def test_what_is_refused_over_http(directory: Path) -> None:
    async with (
        Batcher(directory, n_ctx=1024) as batcher,
        served(application(batcher)) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        beside = asyncio.create_task(client.embeddings.create(model=MODEL, input=TEXTS * 3))
        with pytest.raises(openai.BadRequestError, match=SAID):
            await client.completions.create(model=MODEL, prompt="the fox", max_tokens=1)
        with pytest.raises(openai.BadRequestError, match=SAID):
            await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        with pytest.raises(openai.BadRequestError, match=SAID):
            await client.completions.create(
                model=MODEL, prompt="the fox", max_tokens=1, stream=True
            )
        with pytest.raises(openai.BadRequestError, match="has 513 tokens"):
            await client.embeddings.create(model=MODEL, input=[[5] * 513])
        assert len((await beside).data) == 3 * len(TEXTS)


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, 512),
        ({"n_ubatch": 100}, 100),
        ({"n_batch": 64}, 64),
        ({"n_batch": 1000, "n_ubatch": 1000}, 514),  # the model's positions
        ({"n_ctx": 96}, 96),
    ],
)
async def test_a_text_that_is_too_long(
    options: dict[str, Any], limit: int, directory: Path
) -> None:
    async with Batcher(directory, **{"n_ctx": 1024, **options}) as batcher:
        await batcher.embed([[5] * limit])
        said = f"has {limit + 1} tokens, and {limit} fit: .*raise n_batch, n_ubatch or n_ctx"
        with pytest.raises(RequestTooLongError, match=said):
            await batcher.embed([[5] * (limit + 1)])
        with pytest.raises(RequestTooLongError, match="raise n_batch, n_ubatch or n_ctx"):
            await batcher.embed(["fox " * 9000])


async def test_a_system_prompt_is_refused(directory: Path) -> None:
    with pytest.raises(ConfigError, match="system_prompt: model 'bert-small' is an encoder"):
        async with Batcher(directory, n_ctx=1024, system_prompt="the fox"):
            pass
