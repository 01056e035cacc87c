"""The small model that ships inside pybatcher: its text, its tokenizer and its training.

``words``, ``slots`` -> ``plots`` -> ``stories``; ``facts``, ``replies`` -> ``conversations`` ->
``grammar`` (what others import) -> ``tokenizer``, ``train`` and ``evaluate`` (which need torch).
JSON and tools: ``records`` -> ``json_drills``, ``toy_tools`` -> ``tool_chats`` ->
``held_out_uses``. ``tool_turns`` writes tools, calls and results as turns, as the template does.
"""

from __future__ import annotations

from pathlib import Path

MODEL_PATH = Path(__file__).parents[2] / "pybatcher" / "models" / "tiny"
