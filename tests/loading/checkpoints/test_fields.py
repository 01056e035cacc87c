from __future__ import annotations

import numpy as np
import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.fields import Fields, shown

FIELDS = Fields(
    {"whole": 5, "half": 0.5, "yes": True, "word": "a", "object": {"x": 1}, "null": None}, "f.json"
)


def test_values_as_they_are() -> None:
    assert FIELDS.integer("whole", 5, 5) == 5
    assert FIELDS.number("half", 0, 1) == 0.5
    assert isinstance(FIELDS.number("whole", 0, 9), float)
    assert FIELDS.boolean("yes", False) is True
    assert FIELDS.text("word") == "a"
    assert FIELDS.child("object").integer("x", 0, 1) == 1
    assert FIELDS.get("half") == 0.5


@pytest.mark.parametrize("name", ["null", "absent"])
def test_an_absent_field_takes_its_default(name: str) -> None:
    assert name not in FIELDS
    assert FIELDS.integer(name, 0, 1, 7) == 7
    assert FIELDS.number(name, 0, 1, None) is None
    assert FIELDS.boolean(name, True) is True
    assert FIELDS.text(name, "default") == "default"
    assert FIELDS.child(name).get("x") is None
    FIELDS.refuse_unless(name)


def test_an_absent_field_without_a_default() -> None:
    for read in (FIELDS.integer, FIELDS.number):
        with pytest.raises(ModelFormatError, match=r"^f\.json: absent is missing; expected a"):
            read("absent", 0, 1)
    with pytest.raises(ModelFormatError, match=r"^f\.json: null is None; expected a text"):
        FIELDS.text("null")


@pytest.mark.parametrize("name", ["half", "yes", "word", "object"])
def test_not_a_whole_number(name: str) -> None:
    with pytest.raises(ModelFormatError, match=f"{name} is .*; expected a whole number from 0 to"):
        FIELDS.integer(name, 0, 9, 3)


@pytest.mark.parametrize("name", ["yes", "word", "object"])
def test_not_a_number(name: str) -> None:
    with pytest.raises(ModelFormatError, match=f"{name} is .*; expected a number from 0 to 9"):
        FIELDS.number(name, 0, 9, 3)


@pytest.mark.parametrize("name", ["whole", "yes", "object"])
def test_not_a_text(name: str) -> None:
    with pytest.raises(ModelFormatError, match=f"{name} is .*; expected a text"):
        FIELDS.text(name, "default")


def test_ranges_are_inclusive() -> None:
    with pytest.raises(ModelFormatError, match="whole is 5; expected a whole number from 6 to 9"):
        FIELDS.integer("whole", 6, 9)
    with pytest.raises(ModelFormatError, match=r"half is 0\.5; expected a number from 0 to 0\.4"):
        FIELDS.number("half", 0, 0.4)


def test_a_child_says_where_it_is() -> None:
    with pytest.raises(ModelFormatError, match=r"^f\.json: object: x is 1; expected a text"):
        FIELDS.child("object").text("x")
    with pytest.raises(ModelFormatError, match=r"^f\.json: word is 'a'; expected an object"):
        FIELDS.child("word")


def test_true_is_not_one() -> None:
    FIELDS.refuse_unless("yes", True)
    with pytest.raises(ModelFormatError, match="yes is True; expected 1; nothing else"):
        FIELDS.refuse_unless("yes", 1)
    with pytest.raises(ModelFormatError, match="no such field"):
        FIELDS.refuse_unless("word")


def test_messages_stay_short() -> None:
    assert len(shown("x" * 10**6)) < 200
    assert len(shown([["x" * 10**6] * 1000] * 1000)) < 5000
    assert shown("model.layers.0.self_attn.q_proj.weight").count(".") == 5


def test_defaults_stand_in_for_absent_fields_only() -> None:
    fields = Fields({"a": 1, "b": None}, "config.json").with_defaults({"a": 2, "b": 3, "c": 4})
    assert [fields.get(name) for name in "abc"] == [1, None, 4]
    with pytest.raises(ModelFormatError, match=r"config\.json: c is 4; expected"):
        fields.integer("c", 5, 9)


def test_a_field_is_left_out_of_a_copy() -> None:
    fields = Fields({"a": 1, "b": None}, "file")
    assert fields.names() == ["a", "b"]
    assert fields.without("a").names() == ["b"]
    assert fields.without("c").names() == ["a", "b"]
    with pytest.raises(ModelFormatError, match=r"^file: a is missing"):
        fields.without("a").integer("a", 0, 1)


def test_names_and_values_of_a_file_make_one_short_line_that_can_be_sent() -> None:
    for name in ("\ud800", "a\nb", "k" * 10_000):
        fields = Fields({name: {"x": np.arange(500)}}, "config.json")
        for error in (fields.error(name, "less"), fields.child(name).error("x", "a text")):
            said = str(error)
            said.encode()
            assert said.startswith("config.json: ")
            assert said.isprintable()
            assert len(said) < 400
    assert "is missing" not in str(fields.error(name, "less"))
