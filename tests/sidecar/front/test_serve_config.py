"""The options of the sidecar, and the file that options are read from."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pybatcher import ConfigError
from pybatcher.cli.options import _meanings
from pybatcher.params.config import EngineConfig, SchedulerConfig, SupervisionConfig
from pybatcher.sidecar.front import server as server_module
from pybatcher.sidecar.front.api_keys import read_api_keys
from pybatcher.sidecar.front.named_models import read_models
from pybatcher.sidecar.front.serve_config import ServeConfig, read_config

CLASSES = (EngineConfig, SchedulerConfig, SupervisionConfig, ServeConfig)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pybatcher.toml"


def read(file: Path, text: str) -> dict[str, Any]:
    file.write_text(text)
    return read_config(file)


def refusal(file: Path, text: str) -> str:
    with pytest.raises(ConfigError, match=re.escape(str(file))) as caught:
        read(file, text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("socket", ""),
        ("socket", "a\0b"),
        ("socket", 3),
        ("no_socket", 1),
        ("http", ""),
        ("http", "8000"),
        ("http", "localhost"),
        ("http", 8000),
        ("uds", ""),
        ("api_key_file", 3),
        ("allow_no_key", "yes"),
        ("served_model_name", ""),
        ("allow_origins", "*"),
        ("allow_origins", ["page.example"]),
        ("allow_origins", [5]),
        ("allow_hosts", "*"),
        ("allow_hosts", ["https://page.example"]),
        ("allow_hosts", ["page.example:80"]),
        ("allow_image_hosts", "images.example.org"),
        ("allow_image_hosts", ["*"]),
        ("allow_image_hosts", ["localhost"]),
        ("allow_image_hosts", ["10.0.0.1"]),
        ("allow_image_hosts", ["https://images.example.org"]),
        ("allow_image_hosts", ["images.example.org:443"]),
        ("allow_image_hosts", [5]),
        ("allow_image_hosts", 5),
        ("allow_uids", 1000),
        ("allow_uids", "1000"),
        ("allow_uids", [-1]),
        ("allow_uids", [True]),
        ("allow_uids", [1000.0]),
        ("allow_uids", [2**32 - 1]),
        ("max_connections", 0),
        ("max_in_flight", 0),
        ("max_frame", 1023),
        ("max_frame", 2**31),
        ("max_depth", 3),
        ("max_worker_restarts", -1),
        ("worker_restart_window", 0),
        ("hang_timeout", 0),
        ("hang_timeout", "15"),
        ("hang_timeout", float("nan")),
        ("start_timeout", 0),
        ("drain_timeout", -1),
        ("log_format", "xml"),
        ("log_level", "INFO"),
        ("access_log", "TEXT"),
        ("access_log", True),
        ("access_log", None),
        ("access_log", ["text"]),
    ],
)
def test_what_cannot_work_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is {re.escape(repr(value))}; it must be "):
        ServeConfig(**{name: value})  # type: ignore[arg-type]


def test_the_limits_are_those_of_the_contract() -> None:
    config = ServeConfig()
    assert config.max_frame == 16 * 2**20
    assert (config.max_depth, config.max_in_flight, config.max_connections) == (32, 1024, 256)


def test_a_list_of_uids_is_kept_as_it_was_checked() -> None:
    uids = [0, 1000]
    config = ServeConfig(allow_uids=uids)
    uids.append(-1)
    assert config.allow_uids == (0, 1000)


def test_every_option_has_its_meaning_in_the_docstring() -> None:
    assert {field.name for field in fields(ServeConfig)} == set(_meanings(ServeConfig))


def test_no_option_has_the_name_of_another() -> None:
    names = [field.name for kind in CLASSES for field in fields(kind)]
    assert len(names) == len(set(names))


def test_keys_at_the_top_and_in_tables(file: Path) -> None:
    options = read(
        file,
        """
        model = "/models/llama"
        system_prompt = "Be brief."
        n_ctx = 4096
        allow_uids = [1000, 1001]

        [engine]
        dtype = "int8"
        weights_cache = false
        [scheduler]
        itl_target = 0.05
        [supervision]
        max_restarts = 0
        [serve]
        log_format = "json"
        hang_timeout = 5
        """,
    )
    assert options == {
        "model": "/models/llama",
        "system_prompt": "Be brief.",
        "n_ctx": 4096,
        "allow_uids": [1000, 1001],
        "dtype": "int8",
        "weights_cache": False,
        "itl_target": 0.05,
        "max_restarts": 0,
        "log_format": "json",
        "hang_timeout": 5,
    }


def test_an_empty_file_changes_nothing(file: Path) -> None:
    assert read(file, "") == {}


def test_paths_start_from_the_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
    model = "models/llama"
    mmproj = "models/mmproj.gguf"
    system_prompt_file = "../prompt.txt"
    socket = "run/pybatcher.sock"
    uds = "run/http.sock"
    api_key_file = "keys"
    weights_cache = "cache"
    """
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "models/llama").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    file.write_text(text)
    expected = {
        "model": str(tmp_path / "models/llama"),
        "mmproj": str(tmp_path / "models/mmproj.gguf"),
        "system_prompt_file": str(tmp_path / "../prompt.txt"),
        "socket": str(tmp_path / "run/pybatcher.sock"),
        "uds": str(tmp_path / "run/http.sock"),
        "api_key_file": str(tmp_path / "keys"),
        "weights_cache": str(tmp_path / "cache"),
    }
    assert read_config(file) == expected
    assert read_config("../pybatcher.toml") == {
        name: str(tmp_path / "elsewhere/.." / Path(path).relative_to(tmp_path))
        for name, path in expected.items()
    }


def test_names_on_the_hub_stay_as_they_are(file: Path) -> None:
    assert read(file, 'model = "a/b@v1"') == {"model": "a/b@v1"}
    assert read(file, 'mmproj = "hf:a/b/m.gguf"') == {"mmproj": "hf:a/b/m.gguf"}
    assert read(file, '[models]\nx = "hf:a/b/c.gguf"') == {"models": {"x": "hf:a/b/c.gguf"}}


@pytest.mark.parametrize("word", ["auto", "off"])
def test_words_for_the_weights_cache_are_no_paths(file: Path, word: str) -> None:
    assert read(file, f'weights_cache = "{word}"') == {"weights_cache": word}


def test_a_chat_template_is_a_text_or_a_file_beside_the_config(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    for table in ("", "[engine]\n"):
        path = read(file, f'{table}chat_template = "own.jinja"')["chat_template"]
        assert path == str(tmp_path / "own.jinja")
        assert EngineConfig(chat_template=path).template_source == "{{ messages }}"
        text = {"chat_template": "{% if a %}/own.jinja{% endif %}"}
        assert read(file, f"{table}chat_template = {text['chat_template']!r}") == text
    for wrong in ('"missing.jinja"', '""', "5", '"a\\u0000b"', "[]"):
        said = refusal(file, f"chat_template = {wrong}")
        assert "in the config file" in said
        assert "chat_template is " in said


def test_the_home_directory_can_be_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert read(file, 'model = "~/llama"') == {"model": "/home/somebody/llama"}


def test_an_unknown_key_is_named_beside_the_known_ones(file: Path) -> None:
    said = refusal(file, "n_ctxx = 3")
    assert "unknown option 'n_ctxx': did you mean n_ctx? The options are: " in said
    known = said.partition(" The options are: ")[2].split(", ")
    expected = {field.name for kind in CLASSES for field in fields(kind)}
    assert set(known) == expected | {"model", "models", "system_prompt", "system_prompt_file"}
    assert "unknown option 'n_ctxx'" in refusal(file, "[engine]\nn_ctxx = 3")
    assert "unknown option 'extra'" in refusal(file, "[extra]\nn_ctx = 3")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n_ctx = 3", "n_ctx is 3; it must be a whole number"),
        ('n_ctx = "8192"', "n_ctx is '8192'; it must be a whole number"),
        ("[serve]\nallow_uids = 5", "allow_uids is 5; it must be a list"),
        ("n_ctx = 64\n[engine]\nn_ctx = 64", "n_ctx is there twice: at the top and in [engine]"),
        ("[engine]\nn_batch = 64", "n_batch is in [engine]; its table is [scheduler]"),
        ('[serve]\nmodel = "a"', "model is in [serve]; its place is the top, before any table"),
        ("engine = 3", "engine is 3; it must be a table of options: [engine]"),
        ("model = 3", "model is 3; it must be a path"),
        ('system_prompt_file = ""', "system_prompt_file is ''; it must be a path"),
        ('system_prompt = ""', "system_prompt is ''"),
        ('system_prompt = "a"\nsystem_prompt_file = "b"', "give one of them"),
        ("n_ctx = ", "is not TOML: Invalid value (at end of document)"),
        ("a = " + "[" * 10_000, "is not TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_it(file: Path, text: str, why: str) -> None:
    assert why in refusal(file, text)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        with pytest.raises(ConfigError, match=f"cannot read the config file {path}: {why}"):
            read_config(path)
    (tmp_path / "latin").write_bytes(b'model = "\xe9"')
    with pytest.raises(ConfigError, match="latin is not TOML"):
        read_config(tmp_path / "latin")


def test_a_name_that_is_not_utf_8_is_refused() -> None:
    """Python has its bytes as lone surrogates, which no answer could have."""
    for name in ("caf\udce9", "\ud800"):
        with pytest.raises(ConfigError, match=r"^served_model_name is .*lone surrogate"):
            ServeConfig(served_model_name=name)
        with pytest.raises(ConfigError, match=r"^models has the name .*printable"):
            read_models([f"{name}=/a", "b=/b"])
    assert ServeConfig(served_model_name="café").served_model_name == "café"


def test_only_regular_files_are_read_again(tmp_path: Path) -> None:
    """A pipe would be waited for: a shell's process substitution has its writer at the start."""
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe, 0o600)
    file.write_text("n_ctx = 256\n")
    file.chmod(0o600)
    assert read_config(file, regular_only=True) == {"n_ctx": 256}
    for path in (pipe, tmp_path, Path("/dev/null")):
        for read in (read_config, read_api_keys):
            with pytest.raises(ConfigError, match=r"cannot read .*not a regular file"):
                read(path, regular_only=True)
    writer = threading.Thread(target=lambda: pipe.write_text("n_ctx = 512\n"))
    writer.start()
    assert read_config(pipe) == {"n_ctx": 512}
    writer.join()


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    os.truncate(file, 2**40)
    with pytest.raises(ConfigError, match="more than 16777216 bytes"):
        read_config(file)


async def test_files_that_are_never_read_do_not_stop_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a mount that hangs."""
    go = threading.Event()

    def read() -> Any:
        go.wait()
        return {}, ServeConfig(drain_timeout=3.0)

    monkeypatch.setattr(server_module, "_READING_TIMEOUT", 0.1)
    server = server_module.Server({}, ServeConfig(), read)
    server._loop = asyncio.get_running_loop()
    server._fronts = {}
    reading = asyncio.create_task(server._read_again())
    await asyncio.sleep(0)  # the loop goes on
    with pytest.raises(ConfigError, match="were not read within"):
        await reading
    with pytest.raises(ConfigError, match="an earlier SIGHUP"):
        await server._read_again()
    go.set()
    assert server._reading is not None
    await server._reading
    monkeypatch.setattr(server_module, "_READING_TIMEOUT", 10.0)
    _, _, config, keys = await server._read_again()
    assert (config.drain_timeout, keys) == (3.0, None)
