from __future__ import annotations

import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.models.hub.hub_name import HubName, hub_name, is_plain_path

COMMIT = "0123456789abcdef" * 2 + "01234567"


@pytest.mark.parametrize(
    ("text", "repo", "revision", "file", "kind"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", None, None, None),
        ("hf:Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", None, None, None),
        (f"a/b@{COMMIT}", "a/b", COMMIT, None, None),
        ("a/b@v1.0", "a/b", "v1.0", None, None),
        ("a/b-GGUF:Q4_K_M", "a/b-GGUF", None, None, "Q4_K_M"),
        ("a/b@v1:IQ4_XS", "a/b", "v1", None, "IQ4_XS"),
        ("hf:a/b/c.gguf", "a/b", None, "c.gguf", None),
        ("hf:a/b@v1/sub folder/c.gguf", "a/b", "v1", "sub folder/c.gguf", None),
        ("hf:a/b.gguf", "a/b.gguf", None, None, None),
    ],
)
def test_names(
    text: str, repo: str, revision: str | None, file: str | None, kind: str | None
) -> None:
    assert hub_name(text) == HubName(repo, revision, file, kind, text)


@pytest.mark.parametrize(
    "text",
    [
        *("model", "model.gguf", "models/x.gguf", "models/x.safetensors", "/a/b", "./a/b", "~/a"),
        *(
            "../b",
            "a/..",
            "a/b/c",
            "a/b/c.gguf",
            "a//b",
            "a/",
            "/b",
            "a\\b",
            "C:/b",
            "",
            ".",
            "a/.b",
        ),
        *(
            "a b/c",
            "a/b c",
            "a/b\n",
            "a/b@",
            "a/b@/x",
            "a/b:",
            "a/b--c",
            "a/b..c",
            "a/b-",
            "a/b.git",
        ),
        *(
            "\ud800/b",
            "a/\0",
            "日/本",
            "a/" + "b" * 97,
            "a/b@" + "c" * 200,
            "x" * 10**6,
            "a/" * 10**5,
        ),
        *("hf", "a/b@c@d", "a/b:c:d", "https://huggingface.co/a/b", "../../etc/passwd"),
    ],
)
def test_what_can_only_be_a_path(text: str) -> None:
    assert hub_name(text) is None


@pytest.mark.parametrize(
    "text",
    [
        *("hf:", "hf:model", "hf:a/b/../c.gguf", "hf:a/b/c.bin", "hf:a/b/model.py", "hf:../../etc"),
        *(
            "hf:a/b//c.gguf",
            "hf:a/b/.c.gguf",
            "hf:a b/c",
            "hf:\ud800/b",
            "hf:a/b\0",
            "hf:" + "x" * 10**6,
        ),
        *("hf:a/b/c.gguf:Q4", "hf:a/b@../x", "hf:/a/b", "hf:hf:a/b", "hf:a/b/c\n.gguf"),
    ],
)
def test_no_names(text: str) -> None:
    with pytest.raises(
        ModelFormatError, match="is no name of a model on the hub; one is"
    ) as caught:
        hub_name(text)
    assert len(str(caught.value)) < 600
    str(caught.value).encode()


def test_paths_stay_in_their_folder() -> None:
    assert is_plain_path("a/b c (1).gguf")
    for file in ("", "..", "a/../b", "/a", "a/", "a\\b", "a\0", "./a", "~", "a\nb", "é.gguf"):
        assert not is_plain_path(file), file
