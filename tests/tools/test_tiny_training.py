"""Tokenizer, batches and schedule of the training; and a training of four steps."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

import tools.tiny.tokenizer
import tools.tiny.train
from tools.tiny.batches import IGNORED, copy_batches, document_batches, in_answers, padded
from tools.tiny.card import figures_of, model_card
from tools.tiny.grammar import document, fragment
from tools.tiny.tokenizer import SPECIAL_TOKENS, VOCAB_SIZE, as_text, train_tokenizer
from tools.tiny.tool_chats import tool_chat
from tools.tiny.train import (
    Recipe,
    Stage,
    architecture,
    lean_towards_copying,
    loss_of,
    rate_at,
    train,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Of a twentieth of the documents, which have enough words for the whole vocabulary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tools.tiny.tokenizer, "_N_DOCUMENTS", 1000)
        return train_tokenizer()


def test_the_tokenizer_is_of_the_promised_size(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    assert [tokenizer.id_to_token(i) for i in range(6)] == list(SPECIAL_TOKENS)


def test_a_document_is_tokens_between_begin_and_end(tokenizer: Tokenizer) -> None:
    chat = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hi! 12"}]
    tokens = tokenizer.encode(as_text(chat), add_special_tokens=False).tokens
    assert tokens == [
        "<|begin|>", "<|user|>", "Hello", "!", "<|end|>",
        "<|assistant|>", "Hi", "!", "Ġ", "1", "2", "<|end|>",
    ]  # fmt: skip
    assert as_text("A story.") == "<|begin|>A story.<|endoftext|>"


def test_padding_is_never_a_target() -> None:
    batch = padded([[0, 7, 8, 9], [0, 5]])
    assert batch.inputs.tolist() == [[0, 7, 8], [0, 5, 0]]
    assert batch.targets.tolist() == [[7, 8, 9], [5, IGNORED, IGNORED]]
    assert batch.n_targets == 4


def test_copied_tokens_are_targets_the_second_time(tokenizer: Tokenizer) -> None:
    for batch in itertools.islice(copy_batches(tokenizer, 3, seed=1), 5):
        n = batch.inputs.shape[1] // 2
        assert batch.inputs.shape == (3, 2 * n)
        assert (batch.targets[:, : n + 1] == IGNORED).all()
        assert torch.equal(batch.targets[:, n + 1 :], batch.inputs[:, 2 : n + 1])
        assert int(batch.inputs[:, 1:].min()) >= len(SPECIAL_TOKENS)


def test_document_batches_are_a_function_of_the_seed(tokenizer: Tokenizer) -> None:
    first, again, other = (
        next(document_batches(tokenizer, make, 4, seed))
        for make, seed in ((document, 1), (document, 1), (fragment, 1))
    )
    assert torch.equal(first.inputs, again.inputs)
    assert first.inputs.shape != other.inputs.shape
    assert (first.inputs[:, 0] == 0).all()


def test_targets_in_answers_end_with_the_end_of_a_turn() -> None:
    begin, user, assistant, end = 0, 4, 5, 2
    row = torch.tensor([[begin, user, 7, end, assistant, 8, 9, end, user, 7, end, assistant, 8]])
    told = in_answers(row, assistant, end)
    assert told.tolist() == [[False] * 4 + [True] * 3 + [False] * 4 + [True] * 2]


def test_batches_of_answers_have_no_other_targets(tokenizer: Tokenizer) -> None:
    whole, answers = (
        next(document_batches(tokenizer, tool_chat, 4, 1, answers_only=only))
        for only in (False, True)
    )
    assert torch.equal(whole.inputs, answers.inputs)
    kept = answers.targets != IGNORED
    assert 0 < kept.sum() < 0.6 * (whole.targets != IGNORED).sum()
    assert torch.equal(answers.targets[kept], whole.targets[kept])
    for row, mask in zip(whole.targets, kept, strict=True):
        text = tokenizer.decode(row[mask].tolist(), skip_special_tokens=False)
        assert not any(token in text for token in ("<|user|>", "<|system|>", "<tool_response>"))
        assert text.endswith("<|end|>")


def test_the_learning_rate_rises_and_stays_or_falls() -> None:
    recipe = Recipe(n_warmup=10, final_rate=0.1)
    level = Stage(("documents",), 200, anneals=False)
    falling = Stage(("documents",), 200, anneals=True)
    rates = [rate_at(recipe, level, step) for step in range(200)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9:] == [1.0] * 191
    rates = [rate_at(recipe, falling, step) for step in range(201)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[200] == pytest.approx(0.1)
    half = Stage(("documents",), 200, anneals=True, rate=0.5)
    assert [rate_at(recipe, half, step) for step in range(201)] == [rate / 2 for rate in rates]


def test_the_start_leans_towards_copying(tokenizer: Tokenizer) -> None:
    """At the start, a token in the context is more likely than others."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(architecture(tokenizer))
    tokens = torch.randint(6, VOCAB_SIZE, (8, 24))

    def advantage() -> float:
        with torch.no_grad():
            logits = model(tokens).logits[:, -1]
        return float((logits.gather(1, tokens).mean(1) - logits.mean(1)).mean())

    before = advantage()
    lean_towards_copying(model)
    assert advantage() > 2 * before > 0


def narrow(tokenizer: Tokenizer) -> LlamaConfig:
    """Return the architecture with fewer and smaller matrices, which Muon is slow with."""
    config = architecture(tokenizer)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 48, 96, 2
    return config


SMALL = Recipe(
    stages=(
        Stage(("copies", "fragments"), 2, anneals=False),
        Stage(("drills", "documents"), 2, anneals=True),
        Stage(("records", "tools"), 2, anneals=True, rate=0.5),
    ),
    n_document_rows=2,
    n_fragment_rows=2,
    n_copy_rows=2,
    n_record_rows=2,
    n_tool_rows=2,
    n_validation=1,
)


def test_a_training_of_four_steps_writes_a_model_that_loads(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools.tiny.train, "architecture", narrow)
    train(replace(SMALL, stages=SMALL.stages[:2]), tokenizer, tmp_path / "model")
    assert {file.name for file in (tmp_path / "model").iterdir()} == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]
    model = LlamaForCausalLM.from_pretrained(tmp_path / "model")
    assert next(model.parameters()).dtype == torch.bfloat16
    batch = next(document_batches(tokenizer, document, 1, seed=5))
    assert torch.isfinite(loss_of(model, batch))
    assert "4 steps" in (tmp_path / "model" / "README.md").read_text()


def test_a_later_stage_begins_with_what_is_stored(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs make what one makes: the same weights, and a card with the steps of both."""
    monkeypatch.setattr(tools.tiny.train, "architecture", narrow)
    one, two = tmp_path / "one", tmp_path / "two"
    figures = train(SMALL, tokenizer, one)
    train(replace(SMALL, stages=SMALL.stages[:2]), tokenizer, two)
    with pytest.raises(ValueError, match="trained for 4 steps; stage 2 begins after 2"):
        train(SMALL, tokenizer, two, first_stage=1)
    again = train(SMALL, tokenizer, two, first_stage=2)
    assert again["n_steps"] == figures["n_steps"] == 6
    assert again["loss"] == figures["loss"]
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    assert "6 steps" in (two / "README.md").read_text()


def test_a_card_tells_its_figures_again() -> None:
    figures = {
        "n_parameters": 2e6,
        "n_tokens": 11_600_000.0,
        "n_steps": 4900.0,
        "loss": math.pi,
        "minutes": 42.0,
        "n_threads": 2.0,
    }
    told = figures_of(model_card(figures))
    assert told == {name: figures[name] for name in told}
    assert figures_of("# Another card\n") == {"n_steps": 0, "n_tokens": 0, "minutes": 0}
