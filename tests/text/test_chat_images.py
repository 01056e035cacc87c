"""The images of a chat: which parts are images, and which are refused by name."""

from __future__ import annotations

import base64
import random
from typing import Any

import numpy as np
import pytest
from odd_values import odd_value

from pybatcher.errors import InvalidRequestError
from pybatcher.text import ChatTemplate
from pybatcher.text.chat_images import IMAGE_PART, ChatImage, take_images

TEXT = {"type": "text", "text": "a cat?"}
URI = "data:image/png;base64," + base64.b64encode(b"bytes of a cat").decode()


def taken(*parts: Any, role: str = "user") -> tuple[Any, list[ChatImage]]:
    messages, images = take_images([{"role": role, "content": list(parts)}])
    return messages[0], images


def test_a_template_sees_that_there_is_an_image_and_not_its_value() -> None:
    pixels = np.zeros((2, 2, 3), np.uint8)
    given = [{"type": "image", "image": pixels, "detail": "low"}, TEXT]
    original = {"role": "user", "content": list(given), "name": "Kim"}
    (message,), (image,) = take_images([original])
    assert message == {"role": "user", "content": [IMAGE_PART, TEXT], "name": "Kim"}
    assert (image.where, image.detail) == ("messages[0].content[0].image", "low")
    assert image.value(0) is pixels
    assert original["content"] == given


def test_images_come_in_the_order_of_the_chat() -> None:
    messages = [
        {"role": "user", "content": [TEXT, {"type": "image", "image": b"1"}]},
        {"role": "assistant", "content": "A cat."},
        {"role": "tool", "content": ({"type": "image", "image": b"2"},)},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": URI}}]},
    ]
    read, images = take_images(messages)
    assert [one.value(100) for one in images] == [b"1", b"2", b"bytes of a cat"]
    assert [one.where for one in images][1:] == [
        "messages[2].content[0].image",
        "messages[3].content[0].image_url.url",
    ]
    assert read[1] is messages[1]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": URI},
        {"type": "image_url", "image_url": {"url": URI, "detail": None}},
        {"type": "image_url", "image_url": {"url": URI.replace(";base64", ";x=1;BASE64")}},
    ],
)
def test_data_uris_are_images(part: Any) -> None:
    (image,) = taken(part)[1]
    assert image.value(100) == b"bytes of a cat"
    with pytest.raises(InvalidRequestError, match=r"at most 10 \(max_image_bytes\)") as error:
        image.value(10)
    assert error.value.field == image.where


def test_a_text_that_is_no_data_uri_goes_to_the_reader_of_images() -> None:
    (image,) = taken({"type": "image", "image": "cat.png"})[1]
    assert (image.value(0), image.is_data) == ("cat.png", False)


@pytest.mark.parametrize(
    ("part", "field", "said"),
    [
        ({"type": "image"}, "image", "is None; it must be a PIL.Image"),
        ({"type": "image", "url": URI}, "image", "the part has url, which is not read"),
        ({"type": "image", "source": {"data": ""}}, "image", "has source, which is not read"),
        ({"type": "image", "image": b"x", "detail": "best"}, "detail", "'auto', 'low' or 'high'"),
        ({"type": "image", "image": b"x", "detail": 1}, "detail", "'auto', 'low' or 'high'"),
        ({"type": "image_url"}, "image_url", "of type NoneType; it must be a mapping with the url"),
        ({"type": "image_url", "image_url": URI}, "image_url", "must be a mapping with the url"),
        ({"type": "image_url", "image_url": {}}, "image_url.url", "is None; it must be a data URI"),
        (
            {"type": "image_url", "image_url": {"url": "https://a.b/c.png"}},
            "image_url.url",
            "no UR",
        ),
        (
            {"type": "image_url", "image_url": {"url": "data:text/plain,x"}},
            "image_url.url",
            "no UR",
        ),
        ({"type": "image_url", "image_url": {"url": URI, "detail": 2}}, "image_url.detail", "is 2"),
    ],
)
def test_parts_of_another_shape_are_refused(part: Any, field: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as error:
        taken(TEXT, part)
    assert error.value.field == f"messages[0].content[1].{field}"


def test_damaged_base64_is_refused_when_it_is_read() -> None:
    (image,) = taken({"type": "image", "image": URI + "!"})[1]
    with pytest.raises(InvalidRequestError, match="base64 is damaged"):
        image.value(100)


def test_an_assistant_has_no_images() -> None:
    with pytest.raises(InvalidRequestError, match="put it into a message of the user"):
        taken({"type": "image", "image": b"x"}, role="assistant")


@pytest.mark.parametrize("seed", range(200))
def test_odd_values_are_refused_by_name_or_left_to_the_readers(seed: int) -> None:
    rng = random.Random(seed)
    odd = odd_value(rng)
    shapes = [
        {"type": odd, "image": b"x"},
        {"type": "image", "image": odd},
        {"type": "image", "image": b"x", "detail": odd},
        {"type": "image_url", "image_url": odd},
        {"type": "image_url", "image_url": {"url": odd}},
        odd,
    ]
    try:
        _, images = take_images([{"role": "user", "content": [TEXT, rng.choice(shapes)]}])
        fields = [image.where for image in images]
    except InvalidRequestError as error:
        fields = [error.field or ""]
    assert all(field.startswith("messages") for field in fields)


SHOWS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
ONLY_PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% for part in m.content %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}<image>"
    "{% endif %}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("source", [SHOWS, ONLY_PARTS])
def test_templates_get_the_parts_of_messages_with_images(source: str) -> None:
    template = ChatTemplate(source)
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{**TEXT, "cache": 1}, IMAGE_PART, TEXT]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": [TEXT, TEXT]},
    ]
    text = template.render(chat)
    assert text.startswith("[system]Be brief.[user]a cat?<image>a cat?[assistant]A cat.[user]a c")
    assert template.takes_images("<image>")
    assert not template.takes_images("<picture>")


def test_templates_without_images() -> None:
    assert not ChatTemplate("{{ messages[0].content }}").takes_images("<image>")
    assert not ChatTemplate("{{ broken").takes_images("<image>")
    assert not ChatTemplate(None).takes_images("<image>")


def test_stand_ins_tell_texts_of_the_chat_from_those_of_the_template() -> None:
    chat = [{"role": "user", "content": [IMAGE_PART, {"type": "text", "text": "<image> is text"}]}]
    assert ChatTemplate(SHOWS).render(chat, stand_ins={"<image>": "%1"}) == (
        "[user]<image>%1 is text"
    )
    tool = {"type": "function", "function": {"name": "f", "description": "<image>"}}
    shown = ChatTemplate("{{ tools | tojson }}<image>").render(
        [{"role": "user", "content": "x"}], tools=[tool], stand_ins={"<image>": "%1"}
    )
    assert (shown.count("%1"), shown.count("<image>")) == (1, 1)
