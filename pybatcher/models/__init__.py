"""The model that ships with pybatcher, demonstration prompts for it, and models of the hub.

Imports only the standard library: the command line imports the prompts before a model is loaded.
"""

from __future__ import annotations

from pathlib import Path

DEMO_PROMPTS: tuple[str | tuple[dict[str, str], ...], ...] = (
    "Once upon a time, a brave dragon named Ruby lived in the forest. One stormy night,",
    ({"role": "user", "content": "Tell me a story about a boy named Sam."},),
    "By the lake there lived a shy mouse named Clara. She had one wish: she wanted to",
    (
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": "What is the capital of France?"},
    ),
    "Mia was a curious girl who lived by the sea. One windy morning, she found an old map",
    ({"role": "user", "content": "Write a poem about the moon."},),
    "On the hill there lived a young robot named Finn. He had a plan:",
    (
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "What do you get when you mix blue and yellow?"},
    ),
)
"""Prompts of the eight callers of the demo: a ``str`` is a text, a tuple a list of messages."""


def tiny_path() -> Path:
    """Return the directory of the shipped model, in Hugging Face layout."""
    return Path(__file__).parent / "tiny"
