"""Counts with every chunk, and none where they were not asked for."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from http_served import served

from pybatcher.http import application
from pybatcher.testing import fake_batcher

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


async def chunks_of(path: str, **body: Any) -> list[dict[str, Any]]:
    async with (
        fake_batcher(chat_template=TEMPLATE) as batcher,
        served(application(batcher)) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        answer = await http.post(path, json={"stream": True, "max_tokens": 6, **body})
        assert answer.status_code == 200, answer.text
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Once"}], "n": 2}),
        ("/v1/completions", {"prompt": "Once", "n": 2}),
        ("/v1/completions", {"prompt": ["Once", "upon"]}),
    ],
)
async def test_counts_grow_to_those_of_the_end(path: str, asked: dict[str, Any]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = await chunks_of(path, **asked, ignore_eos=True, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert len(set(counts)) > 3
    assert counts[-1] == last["usage"]["completion_tokens"] == 12
    for chunk in chunks:
        usage = chunk["usage"]
        assert usage["prompt_tokens"] == last["usage"]["prompt_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize(
    "options", [{"continuous_usage_stats": True}, {"include_usage": True}, None]
)
async def test_counts_are_null_or_absent_unless_both_are_asked_for(options: Any) -> None:
    """OpenAI: if the usage is included, all other chunks have it too, with the value null."""
    messages = [{"role": "user", "content": "Once"}]
    is_asked = bool(options and options.get("include_usage"))
    for path, asked in (
        ("/v1/completions", {"prompt": "Once"}),
        ("/v1/completions", {"prompt": ["Once", "upon"], "echo": True}),
        ("/v1/chat/completions", {"messages": messages}),
    ):
        *chunks, last = await chunks_of(path, **asked, stream_options=options)
        assert all(chunk.get("usage", 5) is (None if is_asked else 5) for chunk in chunks)
        assert bool(last.get("usage")) == is_asked
