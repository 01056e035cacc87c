"""A fake batcher whose answers a test knows: texts, calls of tools, and values of schemas."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Literal

import httpx
import jsonschema
import pytest
from batcher_helpers import until
from http_served import served
from pydantic import BaseModel

from pybatcher import (
    BlockingBatcher,
    ConfigError,
    DeadlineExceededError,
    EngineError,
    InvalidRequestError,
)
from pybatcher.http import application
from pybatcher.testing import FakeAnswerError, FakeEngine, byte_tokenizer, fake_batcher

USER = [{"role": "user", "content": "Sun?"}]
THINKS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant><think>\n"
    "{# <tool_call> #}{{ tools or '' }}"
)
BARE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ tools or '' }}"
HARMONY = BARE + "{# <|channel|> <|message|> #}"


class City(BaseModel):
    name: str
    people: int
    tags: list[str] = []


def weather(city: Literal["Rome", "Oslo"], days: int = 1) -> str:
    """Tell the weather."""
    return f"{city}: sun"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


async def test_texts_come_in_the_order_of_the_calls() -> None:
    async with fake_batcher(answers=["Hello.", "日本 🙂", ""]) as batcher:
        first = await batcher.chat(USER)
        assert (first.text, first.finish_reason) == ("Hello.", "stop")
        assert first.usage.completion_tokens == len(first.token_ids)
        assert await batcher.detokenize(first.token_ids) == "Hello.<|endoftext|>"
        stream = batcher.stream("Once")
        pieces = [piece.text async for piece in stream]
        assert "".join(pieces) == "日本 🙂"
        assert len(pieces) > 3
        assert (await batcher.generate("Once")).text == ""
        with pytest.raises(FakeAnswerError, match="answers has 3, and this is output 4") as caught:
            await batcher.chat(USER)
        assert caught.value.field == "answers"
        batcher.check_idle()


async def test_a_function_gets_messages_or_prompts() -> None:
    asked: list[Any] = []

    def answer(content: Any) -> str:
        asked.append(content)
        return f"You said {content if isinstance(content, str) else content[-1]['content']}"

    async def answer_later(content: Any) -> str:
        await asyncio.sleep(0)
        return answer(content)

    for function in (answer, answer_later):
        asked.clear()
        async with fake_batcher(answers=function, system_prompt="Be kind.") as batcher:
            made = await asyncio.gather(batcher.chat(USER), batcher.generate("Hi"))
            assert [one.text for one in made] == ["You said Sun?", "You said Hi"]
            several = await batcher.generate(["a", "b"], n=2)
            assert [[c.text for c in one.choices] for one in several] == [
                ["You said a"] * 2,
                ["You said b"] * 2,
            ]
        assert sorted(map(str, asked)) == sorted(map(str, [USER, "Hi", "a", "a", "b", "b"]))


async def test_limits_hold_as_for_a_model() -> None:
    tokenizer = byte_tokenizer()
    async with fake_batcher(answers=lambda _: "one two three", tokenizer=tokenizer) as batcher:
        cut = await batcher.generate("a", max_tokens=3)
        assert (cut.text, cut.finish_reason, len(cut.token_ids)) == ("one", "length", 3)
        stopped = await batcher.generate("a", stop=[" three"])
        assert (stopped.text, stopped.finish_reason) == ("one two", "stop")
        long = await batcher.generate("a", ignore_eos=True, max_tokens=20)
        assert (long.text, len(long.token_ids)) == ("one two three", 20)
        scored = await batcher.generate("a", logprobs=2)
        assert scored.logprobs is not None
        assert [len(one.top) for one in scored.logprobs] == [2] * 14
        given = await batcher.tokenize("zero, ", add_special_tokens=False)
        on = await batcher.generate("a", output=given)
        assert on.text == "one two three"


async def test_steps_preemption_and_restarts_change_no_answer() -> None:
    texts = [f"{i} " * 40 for i in range(12)]
    failed = False

    def fail_once(plan: Any) -> None:
        nonlocal failed
        if len(engine.plans) == 30 and not failed:
            failed = True
            raise RuntimeError("once")

    engine = FakeEngine(n_ctx=640, block_size=16, n_parallel=8, before_step=fail_once)
    async with fake_batcher(engine, answers=lambda prompt: texts[int(prompt)]) as batcher:
        made = await asyncio.gather(*(batcher.generate(str(i)) for i in range(12)))
    assert failed
    assert [one.text for one in made] == texts


async def test_streams_are_cancelled_and_deadlines_hold() -> None:
    engine = FakeEngine(step_delay=0.005)
    async with fake_batcher(engine, answers=lambda _: "x" * 5000) as batcher:
        async with batcher.stream_chat(USER) as stream:
            async for _ in stream:
                break
        late = await batcher.chat(USER, timeout=0.2)
        assert late.finish_reason == "deadline"
        assert 0 < len(late.text) < 5000
        with pytest.raises(DeadlineExceededError):
            await batcher.chat(USER, timeout=1e-6)
        task = asyncio.create_task(batcher.generate("a"))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: not batcher.statistics().running)
        batcher.check_idle()


async def test_calls_and_reasoning_are_said_in_the_models_own_syntax() -> None:
    message = {
        "content": "Let me look.",
        "reasoning_content": "Hm.",
        "tool_calls": [call("weather", city="Rome", days=2), call("weather", city="Oslo")],
    }
    one = {"tool_calls": [{"name": "weather", "arguments": '{"city": "Rome"}'}]}
    for template in (None, THINKS, HARMONY):
        options: Any = {} if template is None else {"chat_template": template}
        async with fake_batcher(answers=[message, one, "Fine."], **options) as batcher:
            stream = batcher.stream_chat(USER, tools=[weather])
            async for _ in stream:
                pass
            made = stream.completion
            assert made is not None
            assert (made.text, made.reasoning) == ("Let me look.", "Hm.")
            assert made.finish_reason == "tool_calls"
            called = [(one.name, one.arguments) for one in made.tool_calls]
            assert called[0] == ("weather", {"city": "Rome", "days": 2})
            assert called[1] == ("weather", {"city": "Oslo"})
            required = await batcher.chat(USER, tools=[weather], tool_choice="required")
            assert [one.arguments for one in required.tool_calls] == [{"city": "Rome"}]
            plain = await batcher.chat(USER, tools=[weather])
            assert (plain.text, plain.reasoning, plain.tool_calls) == ("Fine.", "", ())


async def test_a_message_of_a_model_can_be_said_again() -> None:
    answer = {"tool_calls": [call("weather", city="Rome")]}
    async with fake_batcher(answers=[answer]) as batcher:
        made = await batcher.chat(USER, tools=[weather])
    async with fake_batcher(answers=[made.message]) as batcher:
        again = await batcher.chat(USER, tools=[weather])
    assert again.tool_calls[0].arguments == {"city": "Rome"}


@pytest.mark.parametrize(
    ("answer", "options", "said"),
    [
        ("maybe", {"choices": ["yes", "no"]}, "which choices of the call does not allow"),
        ("ye", {"choices": ["yes", "no"]}, "it ends too early"),
        ("12a", {"regex": "[0-9]+"}, "'a' cannot follow '12'"),
        ('{"name": "Rome"}', {"json_schema": City}, "json_schema of the call does not allow"),
        ('{"people": 1, "name": "a"}', {"json_schema": City}, "must have the order of the schema"),
        ("Rome", {"json_schema": City}, "'Rome' cannot follow ''"),
        ("Rome", {"tools": [weather], "tool_choice": "required"}, "which tools of the call"),
        (
            {"tool_calls": [call("weather", city="Lima")]},
            {"tools": [weather], "tool_choice": {"name": "weather"}},
            "which tools of the call does not allow",
        ),
        ({"tool_calls": [call("whether")]}, {"tools": [weather]}, "'whether'; it must be one of"),
        ({"tool_calls": [call("weather")]}, {}, "one of the tools of the call: none"),
        ({"tool_calls": [5]}, {"tools": [weather]}, r"tool_calls\[0\] is 5; it must be a mapping"),
        (
            {"tool_calls": [{"name": "weather", "arguments": "[1]"}]},
            {"tools": [weather]},
            "the name of a tool and its arguments",
        ),
        (
            {"content": "So:", "tool_calls": [call("weather", city="Rome")]},
            {"tools": [weather], "chat_template": BARE},
            "a model of the format 'generic' cannot write it",
        ),
    ],
)
async def test_an_answer_that_no_model_could_give_is_an_error(
    answer: Any, options: dict[str, Any], said: str
) -> None:
    asked = {name: options[name] for name in options if name != "chat_template"}
    template: Any = {name: options[name] for name in options if name not in asked}
    async with fake_batcher(answers=[answer, "Fine."], **template) as batcher:
        with pytest.raises(FakeAnswerError, match=said) as caught:
            await batcher.chat(USER, **asked)
        assert caught.value.field == "answers"
        assert str(caught.value).startswith("answers[0]")
        assert (await batcher.chat(USER)).text == "Fine."
        batcher.check_idle()


async def test_answers_that_constraints_allow() -> None:
    city = City(name="Rome", people=3, tags=["old"])
    answers = ["yes", "12", city.model_dump_json(), json.dumps(city.model_dump(), indent=2), "{}"]
    async with fake_batcher(answers=answers) as batcher:
        assert (await batcher.generate("a", choices=["yes", "no"])).text == "yes"
        assert (await batcher.generate("a", regex="[0-9]+")).text == "12"
        assert (await batcher.chat(USER, json_schema=City)).parsed == city
        assert (await batcher.generate("a", json_schema=City)).parsed == city
        assert (await batcher.generate("a", json_object=True)).text == "{}"


SCHEMAS: list[dict[str, Any]] = [
    City.model_json_schema(),
    {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 5},
    {"enum": ["red", "green", 5, None]},
    {"type": "string", "minLength": 4, "maxLength": 6},
    {"type": "string", "pattern": "^[a-z]+@[a-z]+\\.com$"},
    {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "boolean"}},
     "required": ["a", "b"], "additionalProperties": False},
    {"type": "string", "format": "date"},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
async def test_without_answers_a_valid_value_comes(schema: dict[str, Any]) -> None:
    async with fake_batcher() as batcher:
        for prompt in ("a", "b"):
            made = await batcher.generate(prompt, json_schema=schema, max_tokens=400)
            assert made.finish_reason == "stop"
            jsonschema.validate(json.loads(made.text), schema)


async def test_without_answers_other_constraints_hold_too() -> None:
    async with fake_batcher(chat_template=BARE) as batcher:
        assert (await batcher.generate("a", choices=["yes", "no"])).text in ("yes", "no")
        number = await batcher.generate("a", regex=r"[a-f]{3,}-[0-9]+ words?", max_tokens=200)
        assert re.fullmatch(r"[a-f]{3,}-[0-9]+ words?", number.text)
        assert (await batcher.generate("a", json_object=True)).text == "{}"
        made = await batcher.chat(
            USER, tools=[weather], tool_choice="required", parallel_tool_calls=False, max_tokens=200
        )
        (called,) = made.tool_calls
        assert called.arguments["city"] in ("Rome", "Oslo")
        assert made.finish_reason == "tool_calls"


@pytest.mark.parametrize("odd", ["a text", b"x", 5, 1.5, True, {}, {"a": "b"}, {"a"}, object()])
def test_odd_answers_are_refused(odd: Any) -> None:
    with pytest.raises(ConfigError, match=r"answers is .* it must be a list of texts") as caught:
        fake_batcher(answers=odd)
    assert caught.value.field == "answers"


ODD_ANSWERS: list[Any] = [
    *(None, 5, True, b"x", ["x"], ("x",), object(), "\ud800", {"content": 5}, {"role": "user"}),
    *({"tool_calls": "x"}, {"tool_calls": {}}, {"reasoning": 5}, {"reasoning_content": ["x"]}),
]


@pytest.mark.parametrize("odd", ODD_ANSWERS, ids=range(len(ODD_ANSWERS)))
async def test_odd_answers_in_a_list_or_of_a_function_are_refused(odd: Any) -> None:
    with pytest.raises(ConfigError, match=r"answers\[1\] is .* it must be a text, or an assistant"):
        fake_batcher(answers=["x", odd])
    async with fake_batcher(answers=lambda _: odd) as batcher:
        with pytest.raises(FakeAnswerError, match="the answer of the function is"):
            await batcher.generate("a")
        batcher.check_idle()


async def test_what_a_function_raises_ends_its_call_alone() -> None:
    def answer(content: Any) -> str:
        if content == "bad":
            raise KeyError("unexpected prompt")
        return "Fine."

    async with fake_batcher(answers=answer) as batcher:
        outcomes: list[Any] = await asyncio.gather(
            batcher.generate("bad"), batcher.generate("good"), return_exceptions=True
        )
        bad, good = outcomes
        assert isinstance(bad, EngineError)
        assert isinstance(bad.__cause__, KeyError)
        assert str(good) == "Fine."


def test_without_asyncio() -> None:
    with BlockingBatcher.over(fake_batcher(answers=["Hello."])) as batcher:
        assert batcher.chat(USER).text == "Hello."


async def test_over_http() -> None:
    body = {"model": "fake", "messages": USER}
    async with (
        fake_batcher(answers=["Hello."]) as batcher,
        served(application(batcher)) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        told = (await http.post("/v1/chat/completions", json=body)).json()
        assert told["choices"][0]["message"]["content"] == "Hello."
        late = await http.post("/v1/chat/completions", json=body)
        assert late.status_code == 500
        assert "answers has 1" in late.text


async def test_without_answers_chats_need_a_template() -> None:
    async with fake_batcher() as batcher:
        with pytest.raises(InvalidRequestError, match="no chat template"):
            await batcher.chat(USER)
