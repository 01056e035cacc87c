"""The hint in the error for an option that there is not."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from pybatcher import Batcher, BlockingBatcher, ConfigError, InvalidRequestError
from pybatcher.calls.options import CompleteOptions, EmbedOptions, check_names
from pybatcher.params import unknown_names
from pybatcher.params.batcher_options import BatcherOptions
from pybatcher.params.unknown_names import flag_hint, unknown_argument, unknown_option
from pybatcher.testing import fake_batcher

OF_BATCHERS = {
    "n_ctxx": "did you mean n_ctx? The options are: ",
    "N-Ctx": "did you mean n_ctx? ",
    "system_promt": "did you mean system_prompt? ",
    "n_gpu_layers": "did you mean device? ",
    "max_model_len": "did you mean n_ctx? ",
    "num_ctx": "did you mean n_ctx? ",
    "model_path": "the model is the first argument: `Batcher(model)`; the options are: ",
    "tensor_parallel_size": "the engine computes on one device; ",
    "temperature": "temperature goes to each call: `batcher.generate(prompt, temperature=...)`; ",
    "max_new_tokens": "max_tokens goes to each call: `batcher.generate(prompt, max_tokens=...)`; ",
    "timeout": "timeout goes to each call: ",
    "functions": "tools goes to each chat: `batcher.chat(messages, tools=...)`; ",
    "stream": "`batcher.stream(prompt)` and `batcher.stream_chat(messages)` return the pieces; ",
}


@pytest.mark.parametrize("name", OF_BATCHERS)
@pytest.mark.parametrize("make", [Batcher, BlockingBatcher, fake_batcher])
def test_a_batcher_tells_the_right_name_first(make: object, name: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigError) as caught:
        make(**{name: 1})
    assert str(caught.value).startswith(f"unknown option {name!r}: {OF_BATCHERS[name]}")
    assert caught.value.field == name


OF_CALLS = {
    "max_token": "did you mean max_tokens? There are: ",
    "max_new_tokens": "did you mean max_tokens? ",
    "num_predict": "did you mean max_tokens? ",
    "repeat_penalty": "did you mean repetition_penalty? ",
    "stop_sequences": "did you mean stop? ",
    "response_format": "json_schema takes a JSON schema or a type, and json_object=True ",
    "do_sample": "temperature=0 takes the likeliest token, ",
    "stream": "`batcher.stream(prompt)` and `batcher.stream_chat(messages)` return the pieces; ",
    "n_ctx": "n_ctx is an option of the batcher: `Batcher(model, n_ctx=...)`; ",
    "num_ctx": "n_ctx is an option of the batcher: `Batcher(model, n_ctx=...)`; ",
    "pooling": "it is a keyword of `embed`; ",
}


@pytest.mark.parametrize("name", OF_CALLS)
async def test_a_call_tells_the_right_name_first(name: str) -> None:
    async with fake_batcher() as batcher:
        for asked in (
            batcher.generate("a", **{name: True}),  # type: ignore[arg-type]
            batcher.chat([], **{name: True}),  # type: ignore[arg-type]
            asyncio.wrap_future(batcher.threadsafe.generate("a", **{name: True})),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidRequestError) as caught:
                await asked
            assert str(caught.value).startswith(f"unknown option {name!r}: {OF_CALLS[name]}")
            assert caught.value.field == name
        with pytest.raises(InvalidRequestError, match=f"unknown option '{name}'"):
            batcher.stream("a", **{name: True})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["max_new_tokens", "response_format", "do_sample", "stream"])
def test_hints_about_sampling_come_only_where_tokens_are_sampled(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"unknown option '{name}'; there are: namespace"):
        check_names({name: 1}, EmbedOptions)


@pytest.mark.parametrize("name", [5, "", "zzzz", "n_ctx" * 10**6, "\udcff", None], ids=ascii)
def test_other_names_get_the_list_alone(name: object) -> None:
    error = unknown_option(name, ("n_ctx", "dtype"))
    assert str(error).startswith("unknown option ")
    assert str(error).endswith("; the options are: dtype, n_ctx")
    assert len(str(error)) < 400
    assert str(unknown_argument(name, (), {})).endswith("; there are: none")


FLAGS = {
    "--max-new-tokens": "did you mean --max-tokens?",
    "--ctx-size": "did you mean --n-ctx?",
    "--n-gpu-layers": "did you mean --device?",
    "--temp": "did you mean --temperature?",
    "-ngl": "did you mean --device?",
    "-c": "did you mean --n-ctx?",
    "-p": "the prompt is the last argument",
    "--tensor-parallel-size": "the engine computes on one device; ",
    "--tools": "tools is a parameter of each request, ",
    "--zzz": "",
    "-x": "",
    "--n-ctx" * 10**5: "",
    "-\udcff": "",
}


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: ascii(flag)[:20])
def test_flags_of_other_programs_lead_to_ours(flag: str) -> None:
    hint = flag_hint(flag, {"--max-tokens", "--n-ctx", "--device", "--temperature"})
    assert hint.startswith(FLAGS[flag])
    assert bool(hint) == bool(FLAGS[flag])


def test_a_flag_of_another_command_is_not_proposed() -> None:
    assert flag_hint("--ctx-size", {"--http"}) == ""
    assert flag_hint("--temp", {"--http"}) == (
        "temperature is a parameter of each request, and this command takes none"
    )


def test_foreign_names_are_none_of_ours_and_lead_to_ours() -> None:
    options = BatcherOptions.__optional_keys__ | {"system_prompt"}
    of_calls = CompleteOptions.__optional_keys__ | {*unknown_names._OF_CHATS}
    for table, own in ((unknown_names._OF_BATCHERS, options), (unknown_names._OF_CALLS, of_calls)):
        targets = {value for value in table.values() if " " not in value}
        assert targets <= own
        assert not own - {"system_prompt"} & {*table}


def test_arguments_beside_the_options_are_those_of_a_batcher() -> None:
    shown = inspect.signature(Batcher).parameters
    assert {*shown} == {*unknown_names._BESIDE} | BatcherOptions.__optional_keys__
