from __future__ import annotations

import itertools
import random

import pytest

from tools.tiny.conversations import MANNERS, conversation, request_for, story_in_manner
from tools.tiny.grammar import documents, held_out_prompts, is_coherent, is_grammatical, is_right
from tools.tiny.stories import LENGTHS, tell

DOCUMENTS = list(itertools.islice(documents(), 2000))
PROMPTS = held_out_prompts(100)


def test_documents_are_a_function_of_the_seed() -> None:
    assert list(itertools.islice(documents(3), 50)) == list(itertools.islice(documents(3), 50))
    assert list(itertools.islice(documents(3), 50)) != list(itertools.islice(documents(4), 50))


def test_documents_vary() -> None:
    plain = [d for d in DOCUMENTS if isinstance(d, str)]
    assert 0.15 < len(plain) / len(DOCUMENTS) < 0.4
    assert len(set(plain)) > 0.95 * len(plain)


def test_conversations_alternate_and_end_with_an_answer() -> None:
    for messages in (d for d in DOCUMENTS if not isinstance(d, str)):
        roles = [m["role"] for m in messages]
        if roles[0] == "system":
            roles = roles[1:]
        assert roles
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert all(m["content"].strip() == m["content"] != "" for m in messages)
        assert not any("{" in m["content"] or "<|" in m["content"] for m in messages)


def _answers_to(manner: str) -> list[str]:
    rng = random.Random(1)
    answers = []
    for _ in range(3000):
        messages = conversation(rng)
        if messages[0]["content"] in MANNERS[manner] and messages[0]["role"] == "system":
            answers += [m["content"] for m in messages if m["role"] == "assistant"]
    return answers


def test_answers_keep_the_manner_that_the_system_message_asks_for() -> None:
    assert all(a.startswith("Arr! ") and a.endswith(" Aye, matey!") for a in _answers_to("pirate"))
    assert all(a.startswith("Very good. ") for a in _answers_to("butler"))
    assert sum(a.endswith(" The end.") for a in _answers_to("storyteller")) > 20
    one_word = _answers_to("one word")
    assert len(one_word) > 100
    assert all(len(a.split()) == 1 or "," in a for a in one_word if a != "Snow castle.")


def test_a_request_names_only_what_its_story_tells() -> None:
    rng = random.Random(2)
    for _ in range(300):
        length = rng.choice(list(LENGTHS))
        story = tell(rng, length=length)
        text, named = request_for(rng, story, length)
        assert text.endswith((".", "?"))
        assert set(named) <= story.told
        assert all(story.scene[variable] == word for variable, word in named.items())


@pytest.mark.parametrize("manner", sorted(MANNERS))
def test_a_story_is_coherent_in_every_manner(manner: str) -> None:
    story = tell(random.Random(3)).text
    for judge in (is_grammatical, is_coherent):
        assert judge(story_in_manner(manner, story))
        assert not judge(story_in_manner(manner, f"{story} the"))
        assert not judge(story_in_manner(manner, story.partition(". ")[2]))


def test_right_sentences_that_do_not_fit_together_are_grammatical_only() -> None:
    first, second = tell(random.Random(4)), tell(random.Random(5))
    assert first.plot is not second.plot
    mixed = f"{first.text} {second.text.partition('. ')[2]}"
    assert is_grammatical(mixed)
    assert not is_coherent(mixed)
    assert not is_grammatical(mixed.replace(" the ", " a the ", 1))


def test_held_out_prompts_are_of_every_kind() -> None:
    assert held_out_prompts(100) == PROMPTS
    assert {prompt.kind for prompt in PROMPTS} == {"story", "question", "fact"}
    assert sum(prompt.text is not None for prompt in PROMPTS) == 20
    assert all((prompt.text is None) == bool(prompt.messages) for prompt in PROMPTS)


def test_held_out_prompts_are_in_no_training_document() -> None:
    trained = "\n".join(
        d if isinstance(d, str) else "\n".join(m["content"] for m in d) for d in DOCUMENTS
    )
    for prompt in PROMPTS:
        if prompt.kind == "question":
            assert prompt.messages[-1]["content"] not in trained or len(prompt.messages) == 3
        if prompt.kind == "fact":
            assert prompt.messages[-1]["content"] not in trained


def test_is_right_judges_answers() -> None:
    for prompt in PROMPTS:
        if prompt.expected is not None:
            assert is_right(prompt, prompt.expected)
            assert not is_right(prompt, prompt.expected + " Yes.")


def test_is_right_wants_the_named_facts_in_the_story() -> None:
    rng = random.Random(4)
    story, other = tell(rng), tell(rng)
    prompt = next(p for p in PROMPTS if p.kind == "story" and "hero" in p.named)
    text = story.text.replace(story.scene["hero"], "Xaver")
    assert not is_right(prompt, text)
    named = {"hero": other.scene["hero"]}
    wished = type(prompt)("story", messages=prompt.messages, named=named)
    assert is_right(wished, other.text)
    assert not is_right(wished, text)


def test_is_right_joins_a_plain_prompt_and_its_continuation() -> None:
    story = tell(random.Random(5)).text
    prompt = type(PROMPTS[0])("story", text=story[:40])
    assert is_right(prompt, story[40:])
    assert not is_right(prompt, story)
