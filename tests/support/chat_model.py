"""The shipped model as one that knows tools and thinks: with another template, and with markers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from pybatcher.models import tiny_path

__all__ = ["MARKERS", "MARKER_IDS", "chat_model"]

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
MARKER_IDS = dict(zip(MARKERS, range(2044, 2048), strict=True))
"""The last ones of the vocabulary, in place of rare words."""
_TEMPLATE = """\
{{- bos_token }}
{%- if tools %}{{ '<|system|>Tools: ' + tools | tojson + '<|end|>' }}{% endif %}
{%- for m in messages %}
  {%- if m.role == 'tool' %}{{ '<|user|><tool_response>' + m.content + '</tool_response>' }}
  {%- else %}{{ '<|' + m.role + '|>' + m.content }}{% endif %}
  {%- for call in m.tool_calls or [] %}
    {{- '<tool_call>\\n' }}
    {{- {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
    {{- '\\n</tool_call>' }}
  {%- endfor %}
  {{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}
  {%- if enable_thinking %}{{ '<think>\\n' }}{% endif %}
{%- endif %}"""


def chat_model(directory: Path, *, special: bool = False) -> Path:
    """Make a copy of the shipped model in `directory` and return its path.

    special: the markers are special tokens, as DeepSeek has them, else tokens that are none, as
        Qwen3 has them.
    """
    model = directory / "chat-model"
    shutil.copytree(tiny_path(), model)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings["chat_template"] = _TEMPLATE
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    words = {token_id: word for word, token_id in vocabulary.items()}
    for marker, token_id in MARKER_IDS.items():
        word = words[token_id]
        del vocabulary[word]
        merges[:] = [merge for merge in merges if "".join(merge) != word]
        tokenizer["added_tokens"].append(
            {
                "id": token_id,
                "content": marker,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": special,
            }
        )
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    return model
