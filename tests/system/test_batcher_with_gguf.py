"""The shipped model as one GGUF file: whatever is asked of it, the answers are the directory's."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_files import write_gguf
from typer.testing import CliRunner

from pybatcher import Batcher, Completion, Engine, ModelFormatError
from pybatcher.cli import make_app
from pybatcher.loading.convert import conversion
from pybatcher.models import tiny_path

PROMPTS = ("Once upon a time", "The fox looked at 12 stars.", "A", "\n\nWhy? \u2013 caf\u00e9")
CHATS = ("What color is the sky?", "How many legs has a spider?")
SYSTEM = "You are a friendly storyteller."


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tiny_path(), tmp_path_factory.mktemp("gguf") / "tiny-bf16.gguf", pre="smollm")


@pytest.fixture
def without_gguf(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the `gguf` package one that is not installed, for the rest of a test."""

    def hide() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "gguf"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "gguf", None)

    return hide


def tq1_0(name: str) -> Kind:
    """A format that the engine has no kernels for, of the matrices whose rows are whole blocks."""
    return Kind.TQ1_0 if "ffn_down" in name else Kind.F16


async def answers(model: Path | None, **options: Any) -> list[Completion]:
    async with Batcher(model, system_prompt=SYSTEM, **options) as batcher:
        return await asyncio.gather(
            *(batcher.generate(prompt, max_tokens=40) for prompt in PROMPTS),
            batcher.generate(PROMPTS[0], max_tokens=40, temperature=0.8, seed=3),
            *(
                batcher.chat([{"role": "user", "content": question}], max_tokens=60)
                for question in CHATS
            ),
        )


def told(completions: Sequence[Completion]) -> list[tuple[object, ...]]:
    return [(c.text, c.token_ids, c.finish_reason, c.usage.prompt_tokens) for c in completions]


async def test_the_same_texts_as_from_safetensors(tiny: Path) -> None:
    known, made = await answers(None), await answers(tiny)
    assert told(made) == told(known)
    assert any(completion.finish_reason == "stop" for completion in made)
    async with Batcher(tiny) as batcher, Batcher() as other:
        assert batcher.runtime.name == "tiny-bf16"
        assert batcher.runtime.tokenizer.eos_token_ids == other.runtime.tokenizer.eos_token_ids
        assert batcher.runtime.tokenizer.bos_token_id == other.runtime.tokenizer.bos_token_id


@pytest.mark.parametrize(("kind", "dtype"), [(Kind.Q8_0, "int8"), (Kind.Q5_1, "q5_1")])
async def test_blocks_need_no_gguf_package(
    kind: Kind, dtype: str, tmp_path: Path, without_gguf: Callable[[], None]
) -> None:
    path = write_gguf(tiny_path(), tmp_path / "tiny.gguf", kind, pre="smollm")
    without_gguf()
    completions = await answers(path)
    assert all(completion.token_ids for completion in completions)
    assert sum(bool(completion.text) for completion in completions) > 4
    async with Batcher(path) as batcher:
        assert batcher.runtime.engine.description()["dtype"] == dtype


async def test_the_package_that_is_missing_is_named(
    tmp_path: Path, without_gguf: Callable[[], None]
) -> None:
    path = write_gguf(tiny_path(), tmp_path / "tiny-tq1_0.gguf", tq1_0, pre="smollm")
    without_gguf()
    with pytest.raises(
        ModelFormatError, match=r"tiny-tq1_0.*pip install .*pybatcher-engine\[gguf\]"
    ):
        await Batcher(path).start()


def test_blocks_of_other_kinds(tmp_path: Path) -> None:
    path = write_gguf(tiny_path(), tmp_path / "tiny-tq1_0.gguf", tq1_0, pre="smollm")
    with pytest.warns(UserWarning, match="rounded to bf16: 4 of TQ1_0"):
        engine = Engine.load(path, n_ctx=64, n_parallel=1)
    assert engine.description()["dtype"] == "bf16"
    engine.close()


def test_packed_weights_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second start converts nothing; the first tells of its progress to the end."""
    path = write_gguf(tiny_path(), tmp_path / "tiny-tq1_0.gguf", tq1_0, pre="smollm")
    told: list[tuple[int, int]] = []
    options: dict[str, Any] = {
        "dtype": "f32",  # no dtype of the engine has these numbers
        "n_ctx": 64,
        "n_parallel": 1,
        "weights_cache": str(tmp_path / "cache"),
    }
    first = Engine.load(path, progress=lambda done, total: told.append((done, total)), **options)
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] > 0
    monkeypatch.setattr(conversion, "_in_parts", None)
    second = Engine.load(path, **options)
    assert second.description()["weights_cache"] in ("mapped", "copied")
    rows = []
    for engine in (first, second):
        rows.append(engine.prefill_chunk(engine.seq_new(), [5, 6, 7], logits=True))
        engine.close()
    assert (rows[0] == rows[1]).all()


def test_command_line(tiny: Path) -> None:
    runner = CliRunner()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = runner.invoke(make_app(), ["info", "--model", str(tiny), "--n-ctx", "64"])
        options = ["--max-tokens", "20", "Once upon a time"]
        made = runner.invoke(make_app(), ["generate", "--model", str(tiny), *options])
        known = runner.invoke(make_app(), ["generate", *options])
    assert shown.exit_code == made.exit_code == known.exit_code == 0
    assert "tiny-bf16" in shown.output
    assert made.output == known.output
    lost = runner.invoke(make_app(), ["info", "--model", str(tiny.with_name("lost.gguf"))])
    assert lost.exit_code != 0


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int4"])
def test_parameters_are_counted_in_elements(dtype: str, tiny: Path, tmp_path: Path) -> None:
    path = write_gguf(tiny_path(), tmp_path / "tiny-q4_0.gguf", Kind.Q4_0, pre="smollm")
    runner = CliRunner()
    counts = set()
    for model in (tiny, path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shown = runner.invoke(make_app(), ["info", "--model", str(model), "--dtype", dtype])
        (line,) = [line for line in shown.output.splitlines() if "parameters" in line]
        counts.add(line)
    assert len(counts) == 1
