"""The shipped model, loaded with transformers: its directory's content and its answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from pybatcher.models import DEMO_PROMPTS, tiny_path
from tools.tiny.evaluate import Judge, evaluate, evaluate_uses, prompt_text
from tools.tiny.grammar import held_out_prompts, is_grammatical
from tools.tiny.held_out_uses import held_out_uses
from tools.tiny.tokenizer import CHAT_TEMPLATE, SPECIAL_TOKENS, as_text

PATH = tiny_path()
_NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}


pytestmark = pytest.mark.usefixtures("one_thread")


def _json(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((PATH / name).read_text())
    return content


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(PATH)


def test_the_directory_is_whole_and_small() -> None:
    files = {file.name: file.stat().st_size for file in PATH.iterdir()}
    assert set(files) == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(files.values()) <= 8_000_000


def test_the_weights_are_finite_bf16_and_tied() -> None:
    with safe_open(PATH / "model.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors.values())
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
    assert "lm_head.weight" not in tensors
    assert _json("config.json")["tie_word_embeddings"] is True


def test_end_tokens_and_special_tokens_agree() -> None:
    tokenizer = AutoTokenizer.from_pretrained(PATH)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    assert sorted(ids.values()) == list(range(len(SPECIAL_TOKENS)))
    generation = _json("generation_config.json")
    assert set(generation["eos_token_id"]) == {ids["<|end|>"], ids["<|endoftext|>"]}
    assert generation["bos_token_id"] == ids["<|begin|>"]
    assert tokenizer.encode("Hello")[0] == ids["<|begin|>"]
    assert tokenizer.vocab_size == _json("config.json")["vocab_size"]


def test_the_tokenizer_keeps_any_text() -> None:
    tokenizer = AutoTokenizer.from_pretrained(PATH)
    for text in ("Once upon a time.", "  two  spaces\n", "Grüße, 12 €, 日本語, 🙂", "\x00\t\r\n"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_the_chat_template_writes_what_training_read() -> None:
    tokenizer = AutoTokenizer.from_pretrained(PATH)
    for prompt in held_out_prompts(40):
        if prompt.messages:
            messages = list(prompt.messages)
            asked = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            assert asked == prompt_text(prompt)
            assert tokenizer.apply_chat_template(messages, tokenize=False) == as_text(messages)


def test_the_chat_template_refuses_an_unknown_role() -> None:
    tokenizer = AutoTokenizer.from_pretrained(PATH)
    with pytest.raises(Exception, match="unknown role: wizard"):
        tokenizer.apply_chat_template([{"role": "wizard", "content": "Abracadabra"}])


def test_held_out_prompts_are_answered_in_grammatical_text_that_ends(judge: Judge) -> None:
    shares = evaluate(judge, held_out_prompts(25))
    assert shares["ends"] == 1.0
    assert shares["grammatical"] >= 0.9
    assert shares["coherent"] >= 0.5
    assert shares["right story"] >= 0.4
    assert shares["right question"] >= 0.4


def test_held_out_json_and_tools(judge: Judge) -> None:
    shares = evaluate_uses(judge, held_out_uses(100))
    assert shares["record"] >= 0.3
    assert shares["value"] >= 0.5
    assert shares["call"] >= 0.3
    assert shares["no call"] >= 0.8
    assert shares["result"] >= 0.5


def test_transformers_asks_for_a_call_as_training_did(judge: Judge) -> None:
    tokenizer = AutoTokenizer.from_pretrained(PATH)
    assert tokenizer.chat_template == CHAT_TEMPLATE
    tool = {"name": "add", "description": "Adds two numbers.", "parameters": _NUMBERS}
    messages = [{"role": "user", "content": "What is 3 plus 4?"}]
    text = tokenizer.apply_chat_template(
        messages,
        tools=[{"type": "function", "function": tool}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text == (
        "<|begin|><|system|>Tools:\nAdds two numbers. "
        '{"name": "add", "arguments": {"a": integer, "b": integer}}<|end|>'
        "<|user|>What is 3 plus 4?<|end|><|assistant|>"
    )
    assert judge.answer(text) == (
        '<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 4}}\n</tool_call>',
        True,
    )


@pytest.mark.parametrize("text", ["Once upon a time", "Long ago,", "There once was"])
def test_a_plain_beginning_becomes_a_story(judge: Judge, text: str) -> None:
    answer, ended = judge.answer(f"<|begin|>{text}")
    assert ended
    assert is_grammatical(text + answer)


def test_the_demonstration_shows_grammatical_stories_and_short_answers(judge: Judge) -> None:
    plain = [isinstance(prompt, str) for prompt in DEMO_PROMPTS]
    answered = judge.answers(
        [
            f"<|begin|>{prompt}" if is_plain else as_text(list(prompt)) + "<|assistant|>"
            for prompt, is_plain in zip(DEMO_PROMPTS, plain, strict=True)
        ]
    )
    answers, stories = set(), 0
    for prompt, is_plain, (answer, ended) in zip(DEMO_PROMPTS, plain, answered, strict=True):
        assert ended, answer
        answers.add(answer)
        stories += is_grammatical(f"{prompt}{answer}" if is_plain else answer)
    assert len(answers) == len(DEMO_PROMPTS) == 8
    assert stories == 5
    assert {"Green.", "Arr! The capital of France is Paris. Aye, matey!"} <= answers


def test_the_stored_weights_load_as_the_architecture_they_name() -> None:
    model = AutoModelForCausalLM.from_pretrained(PATH)
    assert type(model).__name__ == _json("config.json")["architectures"][0] == "LlamaForCausalLM"
    assert sum(p.numel() for p in model.parameters()) < 3_000_000
