"""`TokenizerParts`: a chat template in place of those of the checkpoint."""

from __future__ import annotations

from pybatcher.loading.checkpoints.loaded_model import TokenizerParts

PARTS = TokenizerParts(
    backend=None,
    chat_template="of chats",
    tool_template="of tools",
    special_tokens={"bos_token": "<s>"},
    bos_token_id=1,
    eos_token_ids=frozenset({2}),
)


def test_another_template_is_for_chats_with_tools_too() -> None:
    made = PARTS.with_template("another")
    assert (made.chat_template, made.tool_template) == ("another", None)
    assert (made.special_tokens, made.eos_token_ids) == (PARTS.special_tokens, frozenset({2}))
    assert PARTS.with_template(None) is PARTS
