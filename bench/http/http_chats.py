"""Chats for servers over HTTP: a model whose every token is text, and bodies of requests.

A load generator counts tokens by the text that arrives. The weights are random, as in the other
benchmarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.convert.make_checkpoint import CHECKPOINTS, write_checkpoint
from bench.convert.shapes import config_of
from bench.engines.engine_list import LLAMA_CPP
from bench.serving.traces import Load, TraceRequest, prompt_of
from bench.structured.forms import write_large_tokenizer

__all__ = ["bodies_of", "make_chat_model", "positions_of"]

_TEMPLATE_TOKENS = 64  # more than the template adds to a system prompt and a question
_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)

# Each letter is one token even if the vocabulary has a merge. llama.cpp needs a merge, and gets
# that of two "e".
_LETTERS = "abcdfghijklmnopqrstuvwxyz      "


def make_chat_model(shape: str, dtype: str) -> tuple[Path, Path]:
    """Return the checkpoint of a shape with a vocabulary of words, and its GGUF file of a dtype.

    Both are made if they do not exist. Raises RuntimeError with llama.cpp's message where the file
    cannot be made.
    """
    directory = CHECKPOINTS / f"{shape}-chat"
    template = directory / "chat_template.jinja"
    if not template.exists():
        config = config_of(shape)
        end = config["vocab_size"] - 1
        write_checkpoint(directory, config | {"bos_token_id": end, "eos_token_id": end})
        write_large_tokenizer(directory, config["vocab_size"])
        template.write_text(_TEMPLATE)  # is written last: the checkpoint is complete
    LLAMA_CPP.convert(directory, dtype)
    return directory, directory / LLAMA_CPP.model.format(dtype=dtype)


def bodies_of(trace: Sequence[TraceRequest], seed: int) -> list[dict[str, Any]]:
    """Return the body of each request: the shared part is the system prompt, the rest the question.

    Sampling is greedy, with the trace's number of tokens. The system prompt is the same for every
    seed.
    """
    return [_body(request, i, seed) for i, request in enumerate(trace)]


def positions_of(load: Load) -> int:
    """Return the most positions of a load's requests, in whole blocks of 64."""
    most = load.shared_tokens + load.own_tokens.most + load.new_tokens.most + _TEMPLATE_TOKENS
    return -(-most // 64) * 64


def _body(request: TraceRequest, index: int, seed: int) -> dict[str, Any]:
    n_shared = request.shared_tokens
    system = _text(prompt_of(request, 0, 0)[:n_shared])
    messages = [{"role": "system", "content": system}] if n_shared else []
    own = _text(prompt_of(request, index, seed)[n_shared:])
    return {
        "model": "bench",
        "messages": [*messages, {"role": "user", "content": own}],
        "max_tokens": request.new_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _text(values: Sequence[int]) -> str:
    return "".join(_LETTERS[value % len(_LETTERS)] for value in values)
