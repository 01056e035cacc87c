from __future__ import annotations

import json
import random
import re

from tools.tiny import words
from tools.tiny.json_drills import json_drill
from tools.tiny.records import KEYS, draw_filling, record_chat
from tools.tiny.stories import is_held_out

FILLINGS = [draw_filling(random.Random(seed)) for seed in range(2000)]
HELD_OUT = [draw_filling(random.Random(seed), held_out=True) for seed in range(500)]
_SPELLED = {word: digit for digit, word in words.NUMBERS.items()}
_OF_TABLES = re.compile(r"(Tell me about|Describe|What do you know about|What is the capital)")


def _plain_values(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _plain_values(item)]
    if isinstance(value, list):
        return [text for item in value for text in _plain_values(item)]
    return [str(value)]


def test_answers_are_written_as_json_dumps_writes() -> None:
    for filling in FILLINGS:
        assert filling.answer == json.dumps(json.loads(filling.answer), ensure_ascii=False)
        assert json.loads(filling.answer) == filling.value != {}


def test_values_are_in_the_text() -> None:
    copied = [filling for filling in FILLINGS if not _OF_TABLES.search(filling.ask)]
    assert len(copied) > 1500
    for filling in copied:
        read = " ".join(_SPELLED.get(word, word) for word in re.findall(r"\w+", filling.ask))
        for value in _plain_values(filling.value):
            assert value.lower() in read.lower() or value in words.FOODS, filling.ask


def test_keys_that_are_told_are_in_the_question() -> None:
    told = [filling for filling in FILLINGS if filling.told]
    assert 0.4 < len(told) / len(FILLINGS) < 0.8
    for filling in told:
        for key in re.findall(r'"(\w+)":', filling.answer):
            assert re.search(rf"\b{key}\b", filling.ask)


def test_objects_have_their_facts_under_many_keys() -> None:
    keys = {key for filling in FILLINGS for key in filling.value}
    assert {key for names in KEYS.values() for key in names} <= keys
    firsts = {next(iter(filling.value)) for filling in FILLINGS}
    assert len(firsts) > 30


def test_held_out_texts_are_not_in_training() -> None:
    people = [
        filling.text
        for filling in FILLINGS
        if re.match(r"\w+ (is|lives|has|likes) ", filling.text)
        and not _OF_TABLES.match(filling.text)
        and not any(isinstance(value, list) for value in filling.value.values())
    ]
    assert len(people) > 700
    assert not any(map(is_held_out, people))
    assert all(is_held_out(filling.text) for filling in HELD_OUT)


def test_chats_alternate_and_end_with_an_object() -> None:
    rng = random.Random(3)
    systems = 0
    for _ in range(300):
        messages = record_chat(rng)
        roles = [m["role"] for m in messages]
        systems += roles[0] == "system"
        roles = roles[roles[0] == "system" :]
        assert roles == ["user", "assistant"] * (len(roles) // 2) != []
        assert all(json.loads(m["content"]) for m in messages if m["role"] == "assistant")
    assert 80 < systems < 160


def test_drills_are_words_of_the_question_as_json() -> None:
    kinds = set()
    for seed in range(500):
        asked, answered = json_drill(random.Random(seed))
        value = json.loads(answered["content"])
        kinds.add(type(value))
        assert answered["content"] == json.dumps(value, ensure_ascii=False)
        items = value.items() if isinstance(value, dict) else [(item,) for item in value]
        said = [asked["content"].find(str(word)) for item in items for word in item]
        assert min(said) >= 0
    assert kinds == {list, dict}
