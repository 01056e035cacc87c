"""`pybatcher chat`: conversations in files, and turns that are dropped."""

from __future__ import annotations

import base64
import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from command_line import Run

from pybatcher import BlockingBatcher, ConfigError, InvalidRequestError
from pybatcher.cli.conversation import Conversation, image_part

ASKED = {"role": "user", "content": "What is 2 plus 3?"}
ANSWER = {"role": "assistant", "content": "5 \u00e4"}
CHAT = ["chat", "--max-tokens", "8", "--temperature", "0"]


def test_a_file_has_the_whole_conversation(tmp_path: Path) -> None:
    talked, path = Conversation(), tmp_path / "talk.json"
    talked.add([ASKED], [ANSWER])
    talked.sent = []  # as if turns were dropped
    talked.add([ASKED], [ANSWER])
    talked.save(str(path))
    assert talked.sent == [ASKED, ANSWER]
    other = Conversation()
    other.load(str(path))
    assert len(other.messages) == 4
    assert other.messages[0] == ASKED
    assert other.sent == other.messages
    assert other.sent is not other.messages
    other.clear()
    other.save(str(path))
    other.load(str(path))
    assert other.messages == other.sent == []
    assert os.listdir(tmp_path) == ["talk.json"]


PNG = b"\x89PNG\r\n\x1a\n something"


def test_a_file_keeps_images(tmp_path: Path) -> None:
    path, image = str(tmp_path / "talk.json"), tmp_path / "a.png"
    image.write_bytes(PNG)
    part = image_part(str(image))
    url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert part == {"type": "image_url", "image_url": {"url": url}}
    asked = {"role": "user", "content": [part, {"type": "text", "text": "a"}]}
    talked, other = Conversation(), Conversation()
    talked.add([asked], [ANSWER])
    talked.save(path)
    other.load(path)
    assert other.messages == [asked, ANSWER]
    odd = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///a"}}]}
    Path(path).write_text(json.dumps({"messages": [odd]}))
    with pytest.raises(ConfigError, match=r"messages\[0\]\.content\[0\]\.image_url\.url"):
        other.load(path)
    assert other.messages == [asked, ANSWER]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "png"),
        (b"\xff\xd8\xff\xe0", "jpeg"),
        (b"GIF89a", "gif"),
        (b"RIFFxxxxWEBP", "webp"),
        (b"BMxx", "bmp"),
        (b"<svg/>", None),
        (b"", None),
    ],
)
def test_files_of_images_are_known_by_their_bytes(
    tmp_path: Path, data: bytes, kind: str | None
) -> None:
    path = tmp_path / "image"
    path.write_bytes(data)
    if kind is not None:
        url = image_part(str(path))["image_url"]["url"]
        assert url.startswith(f"data:image/{kind};base64,")
        return
    with pytest.raises(ConfigError, match="image"):
        image_part(str(path))


@pytest.mark.parametrize("name", ["", "/no/such", "/dev/zero", "/", "a\0b", "x" * 5000])
def test_other_names_are_no_images(name: str) -> None:
    with pytest.raises(ConfigError, match="image"):
        image_part(name)


def test_images_go_with_the_next_question(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Batcher:
        def stream_chat(self, messages: Any, *args: Any, **options: Any) -> Any:
            asked.append([one["content"] for one in messages if one["role"] == "user"])
            raise InvalidRequestError("the model takes no images")

        async def close(self) -> None:
            pass

    async def open_batcher(*args: Any) -> Any:
        return Batcher()

    monkeypatch.setattr(import_module("pybatcher.cli.chat"), "open_batcher", open_batcher)
    image, other = tmp_path / "a.png", tmp_path / "b.gif"
    image.write_bytes(PNG)
    other.write_bytes(b"GIF89a")
    lines = f"one\ntwo\n/image {other}\n/image /no/such\nthree\n/image {other}\n/reset\nfour\n"
    made = run("chat", "--image", str(image), "--image", str(image), stdin=lines.encode())
    assert made.status == 0
    assert "images of the next question: 1" in made.stderr
    assert "/no/such" in made.stderr
    first, last = image_part(str(image)), image_part(str(other))
    assert asked == [
        [[first, first, {"type": "text", "text": "one"}]],
        ["two"],
        [[last, {"type": "text", "text": "three"}]],
        ["four"],
    ]
    refused = run("chat", "--image", "/no/such")
    assert (refused.status, "/no/such" in refused.stderr) == (2, True)
    refused = run("generate", "--image", str(image), "Hi")
    assert (refused.status, "pybatcher chat --image FILE" in refused.stderr) == (2, True)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "talk.json", tmp_path / "link"
    link.symlink_to(target)
    Conversation().save(str(link))
    assert link.is_symlink()
    assert json.loads(target.read_text()) == {"messages": []}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no JSON"),
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("\xff", "is no JSON"),
        ("5", "messages is int"),
        ("null", "messages is NoneType"),
        ("{}", "messages is NoneType"),
        ('{"messages": 5}', "messages is int"),
        ('["a"]', r"messages\[0\] is str"),
        ('[{"content": "a"}]', r"messages\[0\].role is None"),
        ('[{"role": "user", "content": 5}]', r"messages\[0\].content is int"),
    ],
)
def test_a_file_that_is_none_changes_nothing(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "talk.json"
    path.write_bytes(text.encode("latin-1"))
    talked = Conversation()
    talked.add([ASKED], [ANSWER])
    with pytest.raises(ConfigError, match=message):
        talked.load(str(path))
    assert talked.messages == [ASKED, ANSWER]


@pytest.mark.parametrize("name", ["", "no/such/file", ".", "pipe", "a\0b", "x" * 300, "/dev/zero"])
def test_what_is_no_file(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    talked = Conversation()
    with pytest.raises(ConfigError, match=r"cannot be read|is no file"):
        talked.load(name)
    with pytest.raises(ConfigError, match=r"cannot be written|is no file"):
        talked.save(name)
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_conversation_is_continued(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    with BlockingBatcher() as batcher:
        first = batcher.chat([ASKED], max_tokens=8)
        again = batcher.chat([ASKED, first.message, ASKED], max_tokens=8)
    line = f"{ASKED['content']}\n".encode()
    for answer, n_messages in ((first, 2), (again, 4)):
        outcome = run(*CHAT, "--conversation", str(path), stdin=line)
        assert (outcome.status, outcome.stdout) == (0, f"{answer.text}\n")
        assert len(json.loads(path.read_text())["messages"]) == n_messages
    path.write_text("nothing")
    refused = run(*CHAT, "--conversation", str(path), stdin=line)
    assert refused.status == 2
    assert "is no JSON" in refused.stderr
    assert path.read_text() == "nothing"


def test_commands_save_and_load(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a talk.json"
    asked = [
        *(ASKED["content"], f"/save {path}", "/reset", f"/load {path}", ASKED["content"]),
        *("/save", "/load /no/such/file", f"/save {tmp_path}", f"/save {path}"),
    ]
    outcome = run(*CHAT, stdin="\n".join(asked).encode())
    whole = run(*CHAT, stdin="\n".join([ASKED["content"]] * 2).encode())
    assert (outcome.status, outcome.stdout) == (0, whole.stdout)
    told = outcome.stderr.splitlines()
    assert told[:2] == ["2 messages"] * 2
    assert told[2].startswith("error: /save needs the name of a file")
    assert told[3].startswith("error: /no/such/file cannot be read (No such file or directory)")
    assert told[4].startswith(f"error: {tmp_path} is no file")
    assert told[5] == "4 messages"
    assert len(json.loads(path.read_text())["messages"]) == 4


SMALL = ["chat", "--n-ctx", "128", "--n-parallel", "1", "--max-tokens", "16", "--ignore-eos"]


def test_old_turns_are_dropped_on_request(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    lines = "\n".join(["Tell me a story about a fox and a dog."] * 12).encode()
    refused = run(*SMALL, stdin=lines)
    assert "/trim drops the oldest turns" in refused.stderr
    outcome = run(*SMALL, "--trim", "--conversation", str(path), stdin=lines)
    assert "error" not in outcome.stderr
    assert len(outcome.stdout.splitlines()) >= 12
    assert "messages dropped" in outcome.stderr
    assert len(json.loads(path.read_text())["messages"]) == 24, "the file has all of them"


def test_a_command_drops_old_turns(run: Run) -> None:
    question = "Tell me a story about a fox and a dog."
    n_fit = 0
    outcome: Any = None
    for n_fit in range(1, 12):  # until the next question does not fit
        outcome = run(*SMALL, stdin="\n".join([question] * (n_fit + 1)).encode())
        if "error" in outcome.stderr:
            break
    lines = ["/trim", *[question] * (n_fit + 1), "/trim", question]
    trimmed = run(*SMALL, stdin="\n".join(lines).encode())
    assert trimmed.stderr.count("error") == 1
    assert "messages dropped" in trimmed.stderr
    assert len(trimmed.stdout.splitlines()) > len(outcome.stdout.splitlines())
