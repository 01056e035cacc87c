"""`Plot`: the sentences of a story in their order, and the questions about it.

A plot is a row of beats; each beat is one of several templates. ``must`` beats are in every story,
``may`` beats only in longer ones.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Beat:
    choices: tuple[str, ...]
    needed: bool


@dataclass(frozen=True, slots=True)
class Question:
    """``short`` is the answer in one word, None where one word cannot say it."""

    asks: tuple[str, ...]
    answer: str
    short: str | None = None


@dataclass(frozen=True, slots=True)
class Plot:
    name: str
    topics: tuple[str, ...]  # "Tell me a story about ..."
    beats: tuple[Beat, ...]
    questions: tuple[Question, ...]
    nouns: tuple[str, ...] = ()  # the things that suit it; empty: every thing


def must(*choices: str) -> Beat:
    return Beat(choices, needed=True)


def may(*choices: str) -> Beat:
    return Beat(choices, needed=False)


def ask(*asks: str, answer: str, short: str | None = None) -> Question:
    return Question(asks, answer, short)


OPENING = must(
    "Once upon a time, there was {a_trait} {kind} named {hero} who lived {in_place}.",
    "Once upon a time, {a_trait} {kind} named {hero} lived {in_place}.",
    "{In_place} there lived {a_trait} {kind} named {hero}.",
    "Long ago, {a_trait} {kind} called {hero} lived {in_place}.",
    "{hero} was {a_trait} {kind} who lived {in_place}.",
    "There once was {a_trait} {kind} called {hero}, who lived {in_place}.",
)

FRIENDS_NOW = may(
    "From that day on, {hero} and {friend} were the best of friends.",
    "After that, {hero} and {friend} met every {time} and told each other stories.",
    "That night, {hero} slept well and dreamed of new adventures.",
    "And if you walk past their door, you may still hear the two friends laughing.",
    "They have been good friends ever since.",
)

GENERAL_QUESTIONS = (
    ask(
        "Where did {hero} live?",
        "Where was {hero}'s home?",
        answer="{hero} lived {in_place}.",
        short="{Place}.",
    ),
    ask("Who was {hero}?", answer="{hero} was {a_trait} {kind}.", short="{Kind}."),
    ask("What was {hero} like?", answer="{hero} was {trait}.", short="{Trait}."),
    ask(
        "What was the weather like?",
        "How was the weather?",
        answer="It was {weather}.",
        short="{Weather}.",
    ),
    ask("When did it happen?", answer="It happened one {weather} {time}."),
    ask("Who was {friend}?", answer="{friend} was {a_fkind}.", short="{Fkind}."),
    ask("Who is the story about?", answer="It is about {hero} and {friend_full}."),
)
