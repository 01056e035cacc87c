"""Options are checked where they are made, and sorted by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pybatcher import ConfigError
from pybatcher.params.config import EngineConfig, SchedulerConfig, SupervisionConfig, split_options

REFUSED: list[tuple[str, Any, str]] = [
    ("dtype", "int3", "'f32', 'bf16'"),
    ("kv_dtype", "int4", "one of 'auto'"),
    ("device", "tpu", "one of 'auto', 'cpu', 'cuda'"),
    ("block_size", 33, "one of 'auto', 16"),
    ("block_size", True, "one of 'auto', 16"),
    ("block_size", 32.0, "one of 'auto', 16"),
    ("n_ctx", 15, "from 16 to 67108864, or 'auto'"),
    ("n_ctx", 64.0, "a whole number"),
    ("n_ctx", "Auto", "or 'auto'"),
    ("n_ctx", "64", "or 'auto'"),
    ("n_ctx", None, "or 'auto'"),
    ("n_ctx", True, "or 'auto'"),
    *(
        ("n_threads", value, "a whole number from 0 to 1024; 0 is one for each core")
        for value in (-1, True, "x", 10**9, 1.5, 2.0, None, "auto", float("nan"))
    ),
    ("weights_cache", "", "a directory"),
    ("weights_cache", True, "a directory"),
    ("weights_cache", "False", "'./False' is one"),
    ("weights_cache", "a\0b", "a directory"),
    *(("vision", value, "True or False") for value in (1, 0, None, "no", [], float("nan"))),
    *(
        ("mmproj", value, "the path of a GGUF file")
        for value in (1, True, "", b"x", "a\0b", [], {})
    ),
    *(("max_images", value, "from 0 to 4096") for value in (-1, 4097, True, "1", None, 1.0, b"1")),
    *(("max_image_pixels", value, "from 1 to") for value in (0, 2**28 + 1, False, "all", None, {})),
    *(("max_image_bytes", value, "from 1 to") for value in (0, 2**30 + 1, False, "1MB", None, ())),
    ("n_batch", 0, "from 1"),
    ("batch_timeout", -0.1, "a number of seconds from 0 to 60"),
    ("batch_timeout", float("nan"), "a number of seconds"),
    ("watermark", 0.91, "from 0 to 0.9"),
    ("itl_target", 0, "of seconds, or None"),
    ("victim_policy", "oldest", "'youngest', 'priority', 'cheapest'"),
    ("dynamic_chunking", 1, "True or False"),
    ("max_draft_tokens", 65, "from 0 to 64"),
    ("max_restarts", -1, "from 0"),
    ("step_timeout", 0, "a number of seconds"),
    ("restart_window", "60", "a number of seconds"),
]


@pytest.mark.parametrize(("name", "value", "wanted"), REFUSED, ids=str)
def test_what_cannot_work_is_named_with_its_value_and_the_range(
    name: str, value: object, wanted: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        split_options({name: value})
    message = str(caught.value)
    assert message.startswith(f"{name} is {value!r}; it must be ")
    assert wanted in message


def test_each_option_goes_to_the_class_that_has_it() -> None:
    engine, scheduler, supervision = split_options(
        {"n_ctx": 64, "watermark": 0.5, "max_restarts": 7, "weights_cache": Path("x")}
    )
    assert engine == EngineConfig(n_ctx=64, weights_cache=Path("x"))
    assert scheduler == SchedulerConfig(watermark=0.5)
    assert supervision == SupervisionConfig(max_restarts=7)


@pytest.mark.parametrize("value", [Path("False"), "./False", "Falsehood", False, None], ids=repr)
def test_a_directory_may_have_the_name_of_a_word_for_none(value: Any) -> None:
    kept = EngineConfig(weights_cache=value).weights_cache
    assert kept == (str(value) if isinstance(value, Path) else value)


@pytest.mark.parametrize("value", [Path("m.gguf"), "m.gguf", None], ids=repr)
def test_the_file_of_a_vision_tower(value: Any) -> None:
    kept = split_options({"mmproj": value})[0].mmproj
    assert kept == (None if value is None else "m.gguf")


@pytest.mark.parametrize("value", [0, 1, 1024, np.int64(3), np.uint8(3)], ids=repr)
def test_threads_are_any_whole_number(value: Any) -> None:
    n_threads = split_options({"n_threads": value})[0].n_threads
    assert (type(n_threads), n_threads) == (int, value)


def test_an_unknown_option_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'n_contexts'.* batch_size, .*n_ctx,"):
        split_options({"n_contexts": 64})


def test_n_ubatch_follows_n_batch_and_is_never_more() -> None:
    assert split_options({"n_batch": 99})[0].n_ubatch == 99
    assert split_options({"n_batch": 4096})[0].n_ubatch == 512
    with pytest.warns(UserWarning, match="n_ubatch=200 is more than n_batch=99; using n_ubatch=99"):
        assert split_options({"n_batch": 99, "n_ubatch": 200})[0].n_ubatch == 99
