from __future__ import annotations

from typing import Any

import pytest
from response_texts import deepseek

from pybatcher.text.output.formats.format_of import format_of

# Short templates with what is characteristic of each family's own.
TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
TEMPLATES = {
    "hermes": TURNS + "<tool_call>\n{{ c | tojson }}\n</tool_call>{{ '<think>' }}",
    "qwen_xml": TURNS + "<tool_call>\n<function={{ c.name }}>\n<parameter={{ k }}>",
    "smollm3": TURNS
    + "{% if xml_tools %}<tool_call>{% endif %}{% if '/no_think' in m %}{% endif %}",
    "llama3": "<|start_header_id|>{{ m.role }}<|end_header_id|>{% if b %}<|python_tag|>{% endif %}",
    "mistral": "[INST]{{ m.content }}[/INST][TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments }}",
    "mistral_json": "[INST]{{ m.content }}[/INST][TOOL_CALLS] [{{ c | tojson }}]",
    "harmony": "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>",
    "gemma3": "<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>",
    "gemma4": "<|turn>model\n<|tool_call>call:{{ c.name }}{}<tool_call|>",
    "function_gemma": "<start_of_turn>model<start_function_call>call:f{}<end_function_call>",
    "deepseek": f"{deepseek('calls begin')}{{{{ c }}}}{deepseek('sep')}\n```json\n<think>\n",
    "deepseek_v31": f"{deepseek('calls begin')}{{{{ c }}}}{deepseek('sep')}<think>\n",
    "functionary": "<|python_tag|>{{ c }}<function={{ c.name }}>{{ c.arguments | tojson }}",
    "glm": "[gMASK]<|user|>{{ m }}<tool_call>{{ c.name }}<arg_key>{{ k }}</arg_key>",
    "seed_oss": "<seed:bos>{{ m.role }}<seed:tool_call><function=f><parameter=a>",
    "nemotron": "<SPECIAL_10>{{ m.role }}<TOOLCALL>[{{ c | tojson }}]</TOOLCALL>",
    "tool_calls": "<|assistant|>{{ m }}<tool_calls>[{{ c | tojson }}]</tool_calls><tool_call>",
    "apriel": "<|begin_assistant|>{{ r }}[BEGIN FINAL RESPONSE]<tool_calls>[{{ c }}]</tool_calls>",
    "lfm2": TURNS + "<|tool_call_start|>[{{ c.name }}()]<|tool_call_end|>",
    "internlm2": TURNS + "<|action_start|><|plugin|>{{ c | tojson }}<|action_end|>",
    "granite": "<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|tool_call|>",
    "granite4": "<|start_of_role|>{{ m.role }}<|end_of_role|><tool_call>{{ c }}</tool_call>",
    "generic": "{{ messages }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_template_is_recognised(name: str) -> None:
    assert format_of(TEMPLATES[name]).name == name


@pytest.mark.parametrize(
    ("model_type", "name"),
    [("gpt_oss", "harmony"), ("qwen3", "hermes"), ("unheard_of", "generic"), (None, "generic")],
)
def test_the_models_type_decides_where_the_template_says_nothing(
    model_type: str | None, name: str
) -> None:
    assert format_of("{{ messages }}", model_type).name == name
    assert format_of(None, model_type).name == name
    assert format_of(TEMPLATES["gemma4"], model_type).name == "gemma4"


def own(**fields: Any) -> dict[str, Any]:
    return {"start_anchor": "<s>", "fields": fields}


def test_the_tokenizers_own_template_comes_first() -> None:
    calls = {"open": "[TOOL_CALLS]", "content": "json", "repeats": True}
    found = format_of(TEMPLATES["mistral"], None, own(tool_calls=calls, content={}))
    assert (found.name, found.call_ids) == ("own", "mistral")
    assert format_of(TEMPLATES["hermes"], None, own(content={})).name == "own"


def test_the_tokenizers_own_template_has_the_layout_of_its_family() -> None:
    calls = {"open_pattern": r"\s*<tool_call>", "close": "</tool_call>", "content": "json"}
    found = format_of(TEMPLATES["hermes"], None, own(tool_calls=calls))
    assert found.name == "own"
    (syntax,) = found.calls
    assert (syntax.lead, syntax.tail, syntax.between) == ("\n", "\n", "\n")
    (syntax,) = format_of(None, None, own(tool_calls={**calls, "open_pattern": "<c>"})).calls
    assert (syntax.lead, syntax.tail, syntax.between) == ("", "", "")


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>", "harmony"),
        (r"\[TOOL_CALLS\](?P<name>\w+)\[ARGS\]", "mistral"),
        (r"<tool_call>\s*<function=(?P<name>\w+)>", "hermes"),
        (r"nothing (a+)+ known", "llama3"),
    ],
)
def test_one_that_cannot_be_read_is_recognised_by_its_markers(pattern: str, name: str) -> None:
    template = own(tool_calls={"open_pattern": pattern, "content": "json"})
    assert format_of(TEMPLATES["llama3"], None, template).name == name


@pytest.mark.parametrize("template", [{"a": {1, 2}}, {"fields": {"content": object()}}, {1: 2}])
def test_no_template_is_an_error(template: Any) -> None:
    assert format_of(TEMPLATES["hermes"], None, template).name in ("hermes", "own")
