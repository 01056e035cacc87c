"""The model's own tokenizer: byte-level BPE, trained on the grammar's text.

Documents look like this, ``<|begin|>`` first and an end token last:

    <|begin|>Once upon a time, ...<|endoftext|>
    <|begin|><|system|>Be brief.<|end|><|user|>Hello!<|end|><|assistant|>Hello! ...<|end|>

``tool_turns`` says how tools, calls and results are written between those tokens.

Digits are tokens of their own; everything else is learnt.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tools.tiny.conversations import Message
from tools.tiny.grammar import documents

BEGIN, END_OF_TEXT, END = "<|begin|>", "<|endoftext|>", "<|end|>"
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
SPECIAL_TOKENS = (BEGIN, END_OF_TEXT, END, *ROLES.values())
VOCAB_SIZE = 2048
MAX_LENGTH = 2048
_N_DOCUMENTS = 20_000

_KNOWN_ROLES = "['system', 'user', 'assistant', 'tool']"
_TOOL_LINE = (  # as ``described`` of ``tool_turns``; for a bare function and missing fields too
    "{% set function = tool['function'] | default(tool) %}"
    "{% set parameters = function['parameters'] | default({}, true) %}"
    "{{ '\\n' }}"
    "{% if function['description'] %}{{ function['description'] | trim + ' ' }}{% endif %}"
    """{{ '{"name": ' + function['name'] | tojson + ', "arguments": {' }}"""
    "{% for key, schema in (parameters['properties'] | default({}, true)).items() %}"
    "{{ key | tojson + ': ' }}"
    "{% if schema['type'] is string %}{{ schema['type'] }}{% else %}{{ 'any' }}{% endif %}"
    "{% if not loop.last %}{{ ', ' }}{% endif %}"
    "{% endfor %}"
    "{{ '}}' }}"
)
_TOOLS = (
    "{% if tools %}"
    "{{ '<|system|>' }}"
    "{% if messages[0]['role'] == 'system' %}"
    "{{ messages[0]['content'] | trim + '\\n\\n' }}"
    "{% endif %}"
    "{{ 'Tools:' }}"
    "{% for tool in tools %}" + _TOOL_LINE + "{% endfor %}"
    "{{ '<|end|>' }}"
    "{% endif %}"
)
_CALLS = (
    "{% for call in message['tool_calls'] or [] %}"
    "{% set function = call['function'] | default(call) %}"
    "{% set arguments = function['arguments'] %}"
    "{% if text or not loop.first %}{{ '\\n' }}{% endif %}"
    """{{ '<tool_call>\\n{"name": ' + function['name'] | tojson + ', "arguments": ' }}"""
    "{{ arguments if arguments is string else arguments | tojson }}"
    "{{ '}\\n</tool_call>' }}"
    "{% endfor %}"
)
CHAT_TEMPLATE = (
    "{{ bos_token }}" + _TOOLS + "{% for message in messages %}"
    "{% set role = message['role'] %}"
    "{% if role not in " + _KNOWN_ROLES + " %}"
    "{{ raise_exception('unknown role: ' + role) }}"
    "{% endif %}"
    "{% set text = (message['content'] or '') | trim %}"
    "{% if role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}"
    "{{ '<|user|>' }}"
    "{% else %}{{ '\\n' }}{% endif %}"
    "{{ '<tool_response>\\n' + text + '\\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}{{ '<|end|>' }}{% endif %}"
    "{% elif not (tools and loop.first and role == 'system') %}"
    "{{ '<|' + role + '|>' + text }}" + _CALLS + "{{ '<|end|>' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def as_text(document: str | list[Message]) -> str:
    """Return a document with its special tokens, the beginning included."""
    if isinstance(document, str):
        return f"{BEGIN}{document}{END_OF_TEXT}"
    turns = (f"{ROLES[m['role']]}{m['content']}{END}" for m in document)
    return BEGIN + "".join(turns)


def _contents() -> Any:
    for document in itertools.islice(documents(), _N_DOCUMENTS):
        if isinstance(document, str):
            yield document
        else:
            yield from (message["content"] for message in document)


def train_tokenizer() -> Tokenizer:
    """Train on the first documents. Deterministic."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _contents(),
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` into a directory."""
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
