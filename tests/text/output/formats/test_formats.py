from __future__ import annotations

import pytest
from response_texts import deepseek

from pybatcher.text.output.formats.formats import FORMATS


def test_names_are_those_of_the_formats() -> None:
    assert all(name == one.name for name, one in FORMATS.items())


def test_markers_are_all_that_must_be_seen() -> None:
    assert FORMATS["mistral"].markers >= {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]"}
    assert FORMATS["gemma4"].markers >= {"<|tool_call>", "<tool_call|>", '<|"|>', "<channel|>"}
    assert FORMATS["harmony"].markers >= {"<|channel|>", "<|call|>", "<|return|>"}
    assert deepseek("sep") in FORMATS["deepseek"].markers
    assert FORMATS["deepseek"].markers >= {deepseek("calls begin"), deepseek("call end")}


@pytest.mark.parametrize(
    ("name", "prompt", "inside"),
    [
        ("deepseek", "Hi<|Assistant|><think>\n", True),
        ("qwen_xml", "<|im_start|>assistant\n<think>\n", True),
        ("qwen_xml", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("hermes", "<|im_start|>assistant\n", False),
        ("mistral", "[/INST][THINK]", True),
        ("gemma4", "<|turn>model\n<|channel>thought\n<channel|>", False),
        ("gemma4", "<|turn>model\n<|channel>thought\n", True),
        ("harmony", "<|start|>assistant", False),
        ("harmony", "<|start|>assistant<|channel|>analysis<|message|>", True),
    ],
)
def test_the_prompts_tail_says_whether_reasoning_is_open(
    name: str, prompt: str, inside: bool
) -> None:
    assert FORMATS[name].opens_reasoning(prompt) is inside
