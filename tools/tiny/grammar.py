"""The text that the shipped model is trained on, and the judge of what it writes.

    documents(seed)        endless training text: plain stories and conversations
    held_out_prompts(n)    prompts whose combination of facts is in no training document
    is_right(p, answer)    whether a model answered such a prompt as it was taught
    is_grammatical(text)   whether every sentence of a text is one of the grammar's
    is_coherent(text)      whether a text is one whole story, consistent from beginning to end

Standard library only. Everything is a function of its seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tools.tiny.conversations import (
    MANNERS,
    Message,
    conversation,
    draw_manner,
    reading_exchange,
    request_for,
    story_in_manner,
)
from tools.tiny.facts import draw_fact
from tools.tiny.slots import render
from tools.tiny.stories import read_sentences, read_story, tell, tell_fragment

TRAIN_SEED = 20240607
HELD_OUT_SEED = 7
_STORY_FRAMES = (
    ("Come closer and listen. ", " The end."),
    ("Arr! ", " Aye, matey!"),
    ("Very good. ", " Will that be all?"),
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """``text`` (a plain prompt) or ``messages`` (a chat), never both.

    ``kind`` is "story" (a whole one, with the facts that ``named`` holds), or "question" and
    "fact" (the answer must be ``expected``). ``is_right`` judges.
    """

    kind: str
    text: str | None = None
    messages: tuple[Message, ...] = ()
    named: Mapping[str, str] = field(default_factory=dict)
    expected: str | None = None


def document(rng: random.Random) -> str | list[Message]:
    """Return one training document: a plain text, or the messages of a conversation."""
    pick = rng.random()
    if pick < 0.22:
        return tell(rng, length=rng.choice(("short", "medium", "medium", "long"))).text
    if pick < 0.26:
        fact = draw_fact(rng)
        form = rng.choice(("{q} {a}", "{q}\n{a}", "Question: {q}\nAnswer: {a}", "Q: {q}\nA: {a}"))
        return form.format(q=fact.ask, a=fact.answer)
    return conversation(rng)


def fragment(rng: random.Random) -> str | list[Message]:
    """Return a few sentences of one story and, where they suffice, a question about them."""
    story = tell_fragment(rng)
    questions = story.questions()
    if not questions:
        return story.text
    question = rng.choice(questions)
    ask, answer = (render(t, story.scene) for t in (rng.choice(question.asks), question.answer))
    return list(_chat(("user", f"{story.text} {ask}"), ("assistant", answer)))


def documents(seed: int = TRAIN_SEED) -> Iterator[str | list[Message]]:
    """Yield the training documents, endlessly, in a fixed order."""
    rng = random.Random(seed)
    while True:
        yield document(rng)


def _chat(*contents: tuple[str, str | None]) -> tuple[Message, ...]:
    return tuple({"role": role, "content": text} for role, text in contents if text is not None)


def _story_prompt(rng: random.Random) -> Prompt:
    length = rng.choice(("short", "medium", "long"))
    story = tell(rng, length=length, held_out=True)
    manner, system = draw_manner(rng)
    if manner == "one word":
        system = rng.choice(MANNERS["neutral"])
    user, named = request_for(rng, story, length)
    return Prompt("story", messages=_chat(("system", system), ("user", user)), named=named)


def _plain_prompt(rng: random.Random) -> Prompt:
    """Return the opening of a story, cut after its first sentence or within it."""
    text = tell(rng, held_out=True).text
    words = text.split(" ")
    return Prompt("story", text=" ".join(words[: rng.randint(8, 30)]))


def _reading_prompt(rng: random.Random) -> Prompt:
    manner, system = draw_manner(rng)
    exchange = reading_exchange(rng, manner, held_out=True)
    chat = _chat(("system", system), ("user", exchange.ask))
    return Prompt("question", messages=chat, expected=exchange.answer)


def _follow_up_prompt(rng: random.Random) -> Prompt:
    """Return a chat with a story and a question about it."""
    story = tell(rng, length="medium", held_out=True)
    question = rng.choice(story.questions())
    chat = _chat(
        ("user", request_for(rng, story, "medium")[0]),
        ("assistant", story_in_manner("neutral", story.text)),
        ("user", render(rng.choice(question.asks), story.scene)),
    )
    return Prompt("question", messages=chat, expected=render(question.answer, story.scene))


def _sum_prompt(rng: random.Random) -> Prompt:
    fact = draw_fact(rng, held_out=True)
    return Prompt("fact", messages=_chat(("user", fact.ask)), expected=fact.answer)


def held_out_prompts(n: int, seed: int = HELD_OUT_SEED) -> list[Prompt]:
    """Return ``n`` prompts that are not in training, of every kind in turn."""
    rng = random.Random(seed)
    makers = (_story_prompt, _plain_prompt, _reading_prompt, _follow_up_prompt, _sum_prompt)
    return [makers[i % len(makers)](rng) for i in range(n)]


def _unframed(text: str) -> str:
    """Return a story without the words that a style puts around it ("Arr! ... Aye, matey!")."""
    text = text.strip()
    for head, tail in _STORY_FRAMES:
        if text.startswith(head) and text.endswith(tail):
            return text[len(head) : -len(tail)]
    return text


def is_grammatical(text: str) -> bool:
    """Return whether ``text`` is an opening and sentences that the grammar can write."""
    return read_sentences(_unframed(text))


def is_coherent(text: str) -> bool:
    """Return whether ``text`` is one whole story.

    That is: grammatical, in an order that a plot allows, with the same names, pronouns, objects
    and places from beginning to end.
    """
    return read_story(_unframed(text)) is not None


def is_right(prompt: Prompt, answer: str) -> bool:
    """Return whether a model's whole answer to a prompt (up to its end token) is as taught."""
    if prompt.kind != "story":
        return answer.strip() == prompt.expected
    found = read_story(_unframed((prompt.text or "") + answer))
    if found is None:
        return False
    _, scene = found
    return all(scene.get(variable) == word for variable, word in prompt.named.items())
