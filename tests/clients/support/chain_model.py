"""A checkpoint whose next token depends on the last one only: it says texts that a test chose.

For clients whose requests nobody here writes, as agents: whatever the prompt and the temperature,
each turn is known beforehand. It goes through tokenizer, engine and sampler as any model's does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from pybatcher.models import tiny_path

__all__ = ["chain_model"]

_DOCS = Path(__file__).parents[3] / "docs"
_SPECIAL = ("<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
# Prompts of agents have tens of thousands of tokens: one small head, and words of such texts.
_WIDTH, _HEAD, _MIDDLE = 64, 16, 64
_WORDS = 4096
_SHARPNESS = 8.0  # of 64 dimensions: the chosen token has some 200 nats more than any other
_PIECE = 7  # characters
_TEMPLATE = """\
{{- bos_token }}
{%- if tools %}{{ '<|system|>' + tools | tojson + '<|end|>' }}{% endif %}
{%- for m in messages %}
  {%- if m.role == 'tool' %}{{ '<|user|><tool_response>' + m.content + '</tool_response>' }}
  {%- else %}{{ '<|' + m.role + '|>' + (m.content or '') }}{% endif %}
  {%- for call in m.tool_calls or [] %}
    {{- '<tool_call>\\n' }}
    {{- {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
    {{- '\\n</tool_call>' }}
  {%- endfor %}
  {{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {%- set known = (tools or []) | map(attribute='function.name') | list %}
  {%- set turn = namespace(done=[], next='answer') %}
  {%- for m in messages %}
    {%- for call in m.tool_calls or [] %}
      {%- set turn.done = turn.done + [call.function.name] %}
    {%- endfor %}
  {%- endfor %}
  {%- for name in CALLS | reverse if name in known and name not in turn.done %}
    {%- set turn.next = name %}
  {%- endfor %}
  {{- '<|turn: ' + turn.next + '|>' }}
{%- endif %}"""


def chain_model(
    directory: Path, answer: str, calls: Mapping[str, str] = {}, *, positions: int = 131072
) -> Path:
    """Make a checkpoint in `directory` and return its path.

    calls: arguments as JSON, by the names of tools. The model calls the first one that the request
        has and the conversation has not called yet; without one it says `answer`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_str(_trained())
    chains = [[_turn("answer"), *_pieces(answer)]]
    for name, arguments in calls.items():
        # Two long tokens. What a grammar forces is not cut into them: so this model calls as it
        # should where the choice of tools is free.
        middle = len(arguments) // 2
        begin = f'<tool_call>\n{{"name": "{name}", "arguments": {arguments[:middle]}'
        chains.append([_turn(name), begin, f"{arguments[middle:]}}}", "\n</tool_call>"])
    added = dict.fromkeys(piece for chain in chains for piece in chain)
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in added])
    tokenizer.save(str(directory / "tokenizer.json"))
    pairs = [pair for chain in chains for pair in pairwise([*chain, "<|end|>"])]
    follows = {(tokenizer.token_to_id(one), tokenizer.token_to_id(next)) for one, next in pairs}
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    save_file(_weights(size, follows), str(directory / "model.safetensors"))
    _settings(directory, size, positions, list(calls))
    return directory


@cache
def _trained() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_WORDS,
        special_tokens=list(_SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train(sorted(str(path) for path in _DOCS.glob("*.md")), trainer)
    return str(tokenizer.to_str())


def _turn(name: str) -> str:
    return f"<|turn: {name}|>"


def _pieces(text: str) -> list[str]:
    """Cut a text into pieces of which no two are equal, so that each has one that follows it."""
    pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
    assert len(set(pieces)) == len(pieces)
    return pieces


def _weights(size: int, follows: Iterable[tuple[int, int]]) -> dict[str, np.ndarray]:
    """Return weights of a llama of one layer that adds nothing to the embedding of a token."""
    embedding = np.random.default_rng(0).choice([-1.0, 1.0], (size, _WIDTH)).astype(np.float32)
    head = np.zeros((size, _WIDTH), np.float32)
    for first, second in follows:
        head[second] += _SHARPNESS * embedding[first]
    layer = "model.layers.0"
    square, into_head = (
        np.zeros((_WIDTH, _MIDDLE), np.float32),
        np.zeros((_HEAD, _WIDTH), np.float32),
    )
    attention = {f"{layer}.self_attn.{name}_proj.weight": into_head for name in "qkv"}
    attention[f"{layer}.self_attn.o_proj.weight"] = np.zeros((_WIDTH, _HEAD), np.float32)
    mlp = {f"{layer}.mlp.{name}_proj.weight": square for name in ("gate", "up", "down")}
    ones = np.ones(_WIDTH, np.float32)
    return {
        "model.embed_tokens.weight": embedding,
        **attention,
        **mlp,
        f"{layer}.input_layernorm.weight": ones,
        f"{layer}.post_attention_layernorm.weight": ones,
        "model.norm.weight": ones,
        "lm_head.weight": head,
    }


def _settings(directory: Path, size: int, positions: int, calls: list[str]) -> None:
    config = json.loads((tiny_path() / "config.json").read_text())
    config |= {
        "bos_token_id": _SPECIAL.index("<|begin|>"),
        "dtype": "float32",
        "eos_token_id": _SPECIAL.index("<|end|>"),
        "head_dim": _HEAD,
        "hidden_size": _WIDTH,
        "intermediate_size": _MIDDLE,
        "max_position_embeddings": positions,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "num_key_value_heads": 1,
        "pad_token_id": None,
        "tie_word_embeddings": False,
        "vocab_size": size,
    }
    (directory / "config.json").write_text(json.dumps(config))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "chat_template": _TEMPLATE.replace("CALLS", json.dumps(calls)),
        "model_max_length": positions,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
