from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from bench.structured import schema_outputs
from bench.structured import schemas as tool
from bench.structured.schema_outputs import Masks, judge, reason

CHOICE = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]} | {
    "additionalProperties": False
}


@pytest.fixture(scope="module")
def masks() -> Masks:
    return Masks()


@pytest.mark.parametrize(
    ("schema", "text", "verdict"),
    [
        (CHOICE, '{"a": "x"}', "valid"),
        (CHOICE, '{"a": "z"}', "invalid: $.a"),
        (CHOICE, '{"a": "x"', "invalid: no JSON"),
        ({"format": "ipv4"}, '"1.2.3.400"', "invalid: $"),
        ({"multipleOf": 0.01}, "0.07", "rounded"),
        ({"multipleOf": 0.01}, "0.075", "invalid: $"),
        ({"exclusiveMaximum": 1}, "0.99999999999999999999", "rounded"),
        ({"pattern": r"^\p{Nd}$"}, '"7"', "valid"),
        ({"pattern": r"^\p{Nd}$"}, '"a"', "invalid: $"),
        (
            {"additionalProperties": False, "patternProperties": {r"\p{L}": {}}},
            '{"1": 1}',
            "invalid: $",
        ),
        ({"pattern": r"\p{nothing}"}, '"a"', "unjudged: error"),
        ({"$ref": "#"}, "1", "unjudged: RecursionError"),
        ({"$ref": "http://localhost/x"}, "1", "unjudged: "),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "const": 1}, "2", "valid"),
    ],
)
def test_outputs_are_judged(schema: dict[str, Any], text: str, verdict: str) -> None:
    assert judge(schema, text).startswith(verdict)


@pytest.mark.parametrize(
    ("schema", "about"),
    [
        (
            {"not": {"type": "string"}, "if": {"minimum": 1}, "then": {"maximum": 2}},
            "if, not, then",
        ),
        ({"not": {}}, "Unsatisfiable schema"),
        ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, "oneOf"),
        ({"minProperties": 2}, "minProperties"),
        (True, "a boolean as the schema"),
    ],
)
def test_refusals_are_counted_by_what_they_are_about(masks: Masks, schema: Any, about: str) -> None:
    said = masks.refusal(schema)
    assert said is not None
    assert reason(said) == about


def test_masks_tell_what_may_be_an_output(masks: Masks) -> None:
    assert masks.refusal(CHOICE) is None
    assert masks.accepts(CHOICE, {"a": "y"})
    assert not masks.accepts(CHOICE, {"a": "z"})
    assert not masks.accepts(CHOICE, {})
    assert not masks.accepts({"const": 1}, 12)


def test_tokens_that_the_masks_forbid_are_found(masks: Masks) -> None:
    ids = masks._tokenizer.encode('{"a": "x"}', add_special_tokens=False)
    problem, times = masks.follow(CHOICE, ids)
    assert problem is None
    assert len(times) == len(ids)
    assert masks.follow(CHOICE, ids[:3])[0] is None
    assert masks.follow(CHOICE, [*ids, ids[0]])[0] == f"token {len(ids)} comes after the end"
    assert masks.follow(CHOICE, ids[1:])[0] == "token 0 is not allowed"


def folder_of(path: Path) -> Path:
    """Make a folder of schemas: two with tests, one refused."""
    valid, invalid = {"data": {"a": "x"}, "valid": True}, {"data": {"a": 1}, "valid": False}
    given: dict[str, Any] = {
        "one": {"schema": CHOICE, "tests": [valid, invalid]},
        "two": {"schema": {"const": {"a": 1}}, "tests": [invalid]},
        "bare": {"type": "integer", "maximum": 9, "minimum": 0},
        "refused": {"not": {"type": "string"}},
    }
    (path / "deeper").mkdir()
    for name, one in given.items():
        (path / "deeper" / f"{name}.json").write_text(json.dumps(one))
    return path


def asked(folder: Path) -> argparse.Namespace:
    return argparse.Namespace(
        **{"schemas": folder, "count": 9, "draw": 0, "seeds": 2, "temperature": 1.5},
        **{"bias": 2.0, "tokens": 60, "threads": 1, "streams": 2},
    )


async def test_a_run_counts_all_and_finds_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = asked(folder_of(tmp_path))
    found = await tool.measure(options)
    assert found["schemas_accepted"] == 3
    assert found["schemas_refused"] == {"not": 1}
    counts = {"valid, accepted": 1, "invalid, refused": 1, "invalid, accepted": 1}
    assert found["tests"] == counts
    # The test of "two" says that an instance is none.
    assert found["wrong"] == ['deeper/two.json: {"a": 1}']
    assert found["outputs"] == found["outputs_finished"] == 6
    assert found["verdicts"] == {"valid": 6}
    assert found["tokens"] > 6
    monkeypatch.setattr(tool, "judge", lambda schema, text: "invalid: said so")
    found = await tool.measure(options)
    assert found["verdicts"] == {"invalid": 6}
    assert len(found["wrong"]) == 7


async def test_a_mask_that_lets_anything_through_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sampler's masks are those of the judge, so a wrong output shows by its text alone."""
    folder_of(tmp_path)
    monkeypatch.setattr(
        "pybatcher.text.grammars.compiler.strict_schema", lambda text: '{"type": "boolean"}'
    )
    found = await tool.measure(asked(tmp_path))
    assert found["verdicts"] == {"invalid": 6, "valid": 2}  # a boolean is no string: "refused"


def test_reading_exactly_takes_as_many_digits_as_there_are() -> None:
    text = "0." + "9" * 400
    assert schema_outputs.judge({"exclusiveMaximum": 1, "minimum": 0}, text) == "rounded"
    assert schema_outputs.judge({"maximum": 0.5}, text).startswith("invalid")
