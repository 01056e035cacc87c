"""Downloads from a hub on localhost, by huggingface_hub."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, Repository, fake_hub

from pybatcher.errors import ModelFormatError
from pybatcher.models.hub import find_model, origin_of
from pybatcher.models.hub.download import Counter

MODEL = {
    "config.json": b"{}",
    "tokenizer.json": b"{ }",
    "model.safetensors": bytes(range(256)) * 4096,
    "modeling_x.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickle",
    "onnx/model.onnx": b"x",
}
PARTS = [f"m-Q8_0-0000{i}-of-00002.gguf" for i in (1, 2)]
MAIN, OLD = "a" * 40, "b" * 40


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the library's retries
    repositories = {
        "org/model": Repository(dict(MODEL), {"main": MAIN, "v1": OLD}),
        "org/bare": Repository({f: MODEL[f] for f in ("config.json", "model.safetensors")}),
        "org/pickles": Repository({"config.json": b"{}", "pytorch_model.bin": b"x"}),
        "org/ggufs": Repository({"m-Q4_0.gguf": b"GGUF4", "m-Q8_0.gguf": b"GGUF8"}),
        "org/parts": Repository({part: b"GGUF" + part.encode() for part in PARTS}),
        "org/one": Repository({"m.gguf": b"GGUF", "README.md": b"x"}),
        "org/images": Repository(
            {
                "m-Q8_0.gguf": b"GGUF8",
                "m-Q4_0.gguf": b"GGUF4",
                "mmproj-F16.gguf": b"GGUFT",
                "mmproj-F32.gguf": b"GGUFW",
            }
        ),
        "org/private": Repository(dict(MODEL), token="hf_secret"),
        "org/gated": Repository(dict(MODEL), token="hf_secret", is_gated=True),
        "org/climbing": Repository({**MODEL, "../../x.gguf": b"x", "/x.gguf": b"x"}),
    }
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    with fake_hub(repositories) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def files_in(path: Path) -> list[str]:
    return sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())


def test_no_file_but_those_of_a_model(hub: FakeHub) -> None:
    path = find_model("org/model")
    assert files_in(path) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert hub.downloads() == ["config.json", "tokenizer.json", "model.safetensors"]
    assert (path / "model.safetensors").read_bytes() == MODEL["model.safetensors"]
    assert origin_of(path) == f"org/model@{MAIN}"


def test_the_second_time_nothing_is_asked(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = find_model("org/model")
    hub.requests.clear()
    assert find_model("org/model") == path
    assert find_model("hf:org/model@main") == path
    assert find_model(f"org/model@{MAIN}") == path
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_model("org/model") == path
    assert hub.requests == []


def test_offline_nothing_is_downloaded(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    with pytest.raises(ModelFormatError, match=r"'org/model': no such .*TRANSFORMERS_OFFLINE forb"):
        find_model("org/model")
    assert hub.requests == []


def test_revisions(hub: FakeHub) -> None:
    path = find_model("org/model@v1")
    assert origin_of(path) == f"org/model@{OLD}"
    assert origin_of(find_model("org/model")) == f"org/model@{MAIN}"
    hub.repositories["org/model"].commits["v1"] = MAIN
    assert find_model("org/model@v1") == path
    with pytest.raises(ModelFormatError, match="the hub has no revision 'v2' of org/model"):
        find_model("org/model@v2")


def test_a_model_that_was_moved_on_keeps_its_commit(hub: FakeHub) -> None:
    path = find_model("org/model")
    hub.repositories["org/model"].commits["main"] = "c" * 40
    assert find_model("org/model") == path


def test_all_files_are_of_one_commit(hub: FakeHub) -> None:
    commits = hub.repositories["org/model"].commits
    commits["old"] = MAIN

    def push(done: int, total: int) -> None:
        commits["main"] = "c" * 40

    path = find_model("org/model", push)
    assert files_in(path) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert origin_of(path) == f"org/model@{MAIN}"


def test_whole_files_are_not_downloaded_again(hub: FakeHub) -> None:
    hub.cuts["model.safetensors"] = [700_000, *[0] * 9]
    with pytest.raises(ModelFormatError, match=r"could not be downloaded .*try again: whole files"):
        find_model("org/model")
    hub.cuts.clear()
    hub.requests.clear()
    seen: list[tuple[int, int]] = []
    path = find_model("org/model", lambda done, total: seen.append((done, total)))
    assert hub.downloads() == ["model.safetensors"]
    assert (path / "model.safetensors").read_bytes() == MODEL["model.safetensors"]
    total = sum(len(MODEL[file]) for file in files_in(path))
    assert seen[-1] == (total, total)


def test_goes_on_where_a_connection_broke(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 100_000)
    hub.cuts["model.safetensors"] = [700_000]
    path = find_model("org/model")
    assert (path / "model.safetensors").read_bytes() == MODEL["model.safetensors"]
    assert hub.starts == [700_000]


def test_a_count_begins_with_what_is_there() -> None:
    counts: list[int] = []
    with Counter(counts.append, 5) as counter:
        counter.update(3)
    assert counts == [8]


def test_what_progress_raises_ends_it(hub: FakeHub) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        find_model("org/model", stop)


def test_ggufs(hub: FakeHub) -> None:
    assert find_model("org/one").read_bytes() == b"GGUF"
    assert find_model("org/ggufs:Q8_0").read_bytes() == b"GGUF8"
    assert find_model("hf:org/ggufs/m-Q4_0.gguf").read_bytes() == b"GGUF4"
    assert hub.downloads() == ["m.gguf", "m-Q8_0.gguf", "m-Q4_0.gguf"]


@pytest.mark.parametrize("name", ["org/parts", "org/parts:Q8_0", f"hf:org/parts/{PARTS[0]}"])
def test_a_gguf_in_parts(name: str, hub: FakeHub) -> None:
    path = find_model(name)
    assert (path.name, files_in(path.parent)) == (PARTS[0], PARTS)
    assert hub.downloads() == PARTS
    hub.requests.clear()
    assert find_model(name) == path
    assert not hub.requests
    (path.parent / PARTS[1]).unlink()
    assert find_model(name) == path
    assert files_in(path.parent) == PARTS


REFUSED = {
    "org/ggufs": r"that is 2 of the .*m-Q4_0.gguf, m-Q8_0.gguf.*'hf:org/ggufs/FILE.gguf'",
    "org/pickles": r"no config.json with model.safetensors, and no .gguf; .*pickles",
    "org/private": r"org/private is private or gated, or not there.*HF_TOKEN",
    "org/gated": r"org/gated is private or gated.*https://huggingface.co/org/gated",
    "org/missing": r"no such directory or GGUF file here, and the hub says that org/missing",
    "hf:org/climbing/x.gguf": r"that is none of the repository's GGUF files \(it has none\)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, hub: FakeHub) -> None:
    with pytest.raises(ModelFormatError, match=REFUSED[name]) as caught:
        find_model(name)
    assert f"'{name}'" in str(caught.value)
    assert hub.downloads() == []


def test_a_token_opens_a_private_one(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert files_in(find_model("org/private"))


def test_weights_in_several_files(hub: FakeHub) -> None:
    files = hub.repositories["org/model"].files
    files["model.safetensors.index.json"] = b'{"weight_map": {"a": "x-1.safetensors"}}'
    weights = files.pop("model.safetensors")
    with pytest.raises(ModelFormatError, match="names weights that the repository has not"):
        find_model("org/model")
    files["x-1.safetensors"] = files["x-2.safetensors"] = weights
    assert (find_model("org/model") / "x-1.safetensors").is_file()
    assert "x-2.safetensors" not in hub.downloads()


def test_without_a_tokenizer_the_hub_is_asked_again(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = find_model("org/bare")
    hub.requests.clear()
    assert find_model("org/bare") == path
    assert hub.requests
    hub.requests.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_model("org/bare") == path
    assert not hub.requests
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert find_model("org/bare") == path


def test_no_network(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(
        ModelFormatError, match=r"'org/model': no such .* it could not be downloaded"
    ):
        find_model("org/model")


def test_without_the_library(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = find_model("org/model")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert find_model("org/model") == path
    with pytest.raises(
        ModelFormatError, match=r"'org/one': no such .*pip install 'pybatcher-engine\[hub\]"
    ):
        find_model("org/one")


def test_a_gguf_model_brings_its_vision_tower(hub: FakeHub) -> None:
    path = find_model("org/images:Q8_0")
    assert path.name == "m-Q8_0.gguf"
    assert hub.downloads() == ["mmproj-F16.gguf", "m-Q8_0.gguf"]
    assert files_in(path.parent) == ["m-Q8_0.gguf", "mmproj-F16.gguf"]
    tower = find_model("hf:org/images/mmproj-F32.gguf")
    assert tower == path.parent / "mmproj-F32.gguf"
    assert hub.downloads() == ["mmproj-F16.gguf", "m-Q8_0.gguf", "mmproj-F32.gguf"]
