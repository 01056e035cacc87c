"""Conversations for training: messages, and the style of the answers.

A conversation has at most one system message. It sets the style, and every answer after it keeps
to it: one word, a pirate's voice, a storyteller's frame, short or long stories.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tools.tiny import replies
from tools.tiny.facts import draw_fact
from tools.tiny.slots import Scene, render, variables
from tools.tiny.stories import Story, tell, tell_fragment

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": ...}

NEUTRAL = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "You are a helpful and friendly assistant.",
    "Answer in a full sentence.",
    "Be kind and clear.",
    "You answer questions.",
    "You are an assistant that ships with pybatcher.",
)
ONE_WORD = (
    "Answer in one word.",
    "Answer with one word.",
    "Use one word only.",
    "You answer in one word.",
    "Give one-word answers.",
)
STORYTELLER = (
    "You are a kind storyteller.",
    "You are a storyteller.",
    "You are an old storyteller by the fire.",
    "You tell stories to children.",
)
PIRATE = (
    "You are a pirate.",
    "Talk like a pirate.",
    "Answer like a pirate.",
    "You are a friendly pirate.",
)
BRIEF = ("Be brief.", "Keep your stories short.", "Keep it short.", "Tell short stories.")
POLITE = ("You are a polite butler.", "You are a butler.", "Answer like a butler.")

MANNERS = {
    "neutral": NEUTRAL,
    "one word": ONE_WORD,
    "storyteller": STORYTELLER,
    "pirate": PIRATE,
    "brief": BRIEF,
    "butler": POLITE,
}


def in_manner(manner: str, answer: str) -> str:
    """Return an answer in the style that the system message asked for."""
    if manner == "pirate":
        return f"Arr! {answer} Aye, matey!"
    if manner == "butler":
        return f"Very good. {answer} Will that be all?"
    return answer


def story_in_manner(manner: str, story: str) -> str:
    if manner == "storyteller":
        return f"Come closer and listen. {story} The end."
    return in_manner(manner, story)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user's message, the right answer, and the story behind it, if any."""

    ask: str
    answer: str
    kind: str  # "story", "question", "fact" or "talk"
    story: Story | None = None


_STORY_REQUESTS = (
    "Tell me a {size}story about {hero}.",
    "Tell me a {size}story about {hero} the {kind}.",
    "Tell me a {size}story about {a_kind} named {hero}.",
    "Tell me a {size}story about {a_trait} {kind}.",
    "Tell me a {size}story about {hero} and {friend}.",
    "Tell me a {size}story about {hero} and {friend_full}.",
    "Tell me a {size}story about {hero} the {kind} and {friend_full}.",
    "Tell me a {size}story about {hero} and {a_thing}.",
    "Tell me a {size}story about {hero}, {a_kind} who lived {in_place}.",
    "Tell me a {size}story about {a_kind} and {a_noun}.",
    "Tell me a {size}story about {a_kind} who lived {in_place}.",
    "Write a {size}story about {a_kind} called {hero}.",
    "Write a {size}story about {hero} and {a_thing}.",
    "Please tell me a {size}story about {hero} {in_place}.",
    "Can you tell me a {size}story about {a_kind}?",
    "I would like a {size}story about {hero}.",
)
_OPEN_REQUESTS = (
    "Tell me a {size}story.",
    "Tell me a {size}story, please.",
    "Please tell me another {size}story.",
    "I would like to hear a {size}story.",
)


def _size_word(rng: random.Random, length: str) -> str:
    return {"short": "short ", "long": "long "}.get(length) or rng.choice(("", "", "bedtime "))


def request_for(rng: random.Random, story: Story, length: str) -> tuple[str, Scene]:
    """Return a request that this story fulfils, and the part of the scene that it names."""
    pick = rng.random()
    if pick < 0.08:
        template = rng.choice(_OPEN_REQUESTS)
    elif pick < 0.3:
        topic = rng.choice([t for t in story.plot.topics if variables(t) <= story.told])
        template = rng.choice(
            (
                "Tell me a {size}story about ",
                "Write a {size}story about ",
                "Tell me a {size}story about {hero} and ",
            )
        )
        template += topic + "."
    else:
        fits = [t for t in _STORY_REQUESTS if variables(t.replace("{size}", "")) <= story.told]
        template = rng.choice(fits)
    text = render(template.replace("{size}", _size_word(rng, length)), story.scene)
    named = variables(template.replace("{size}", ""))
    return text, {variable: story.scene[variable] for variable in named}


def _story_exchange(rng: random.Random, manner: str, held_out: bool) -> Exchange:
    length = "short" if manner == "brief" else rng.choice(("short", "medium", "medium", "long"))
    story = tell(rng, length=length, held_out=held_out)
    ask, _ = request_for(rng, story, "medium" if manner == "brief" else length)
    return Exchange(ask, story_in_manner(manner, story.text), "story", story)


def _question_exchange(rng: random.Random, manner: str, story: Story) -> Exchange | None:
    questions = story.questions()
    if manner == "one word":
        questions = [q for q in questions if q.short and variables(q.short) <= story.told]
    if not questions:
        return None
    question = rng.choice(questions)
    answer = question.short if manner == "one word" and question.short else question.answer
    ask = render(rng.choice(question.asks), story.scene)
    return Exchange(ask, in_manner(manner, render(answer, story.scene)), "question", story)


def _fact_exchange(rng: random.Random, manner: str, held_out: bool) -> Exchange:
    while True:
        fact = draw_fact(rng, held_out=held_out)
        if manner != "one word":
            return Exchange(fact.ask, in_manner(manner, fact.answer), "fact")
        if fact.short is not None:
            return Exchange(fact.ask, fact.short, "fact")


def _talk_exchange(rng: random.Random, manner: str) -> Exchange:
    make = rng.choice(
        (replies.greeting, replies.about_itself, replies.poem, replies.unknown, replies.unknown)
    )
    ask, answer = make(rng)
    return Exchange(ask, in_manner(manner, answer), "talk")


def reading_exchange(rng: random.Random, manner: str, *, held_out: bool = False) -> Exchange:
    """Return a story in the user's message, a question about it, and the answer."""
    while True:
        story = tell(rng, length="short", held_out=held_out)
        question = _question_exchange(rng, manner, story)
        if question is not None:
            lead = rng.choice(("", "", "Read this story: ", "Here is a story: "))
            ask = f"{lead}{story.text} {question.ask}"
            return Exchange(ask, question.answer, "question", story)


def draw_manner(rng: random.Random) -> tuple[str, str | None]:
    """Draw a style and its system message; half of the conversations have none."""
    if rng.random() < 0.45:
        return "neutral", None
    manner = rng.choice(
        ("neutral", "neutral", "one word", "one word", "storyteller", "pirate", "brief", "butler")
    )
    return manner, rng.choice(MANNERS[manner])


def exchanges(rng: random.Random, manner: str, *, held_out: bool = False) -> list[Exchange]:
    """Return the turns of one conversation, in order."""
    turns: list[Exchange] = []
    if rng.random() < 0.15 and manner != "one word":
        turns.append(_talk_exchange(rng, manner))
    pick = rng.random()
    if pick < 0.45 and manner != "one word":
        told = _story_exchange(rng, manner, held_out)
        turns.append(told)
    elif pick < 0.65:
        turns.append(reading_exchange(rng, manner, held_out=held_out))
    if turns and turns[-1].story is not None:
        story = turns[-1].story
        asked = {turn.ask for turn in turns}
        for _ in range(rng.randint(0, 4)):
            exchange = _question_exchange(rng, manner, story)
            if exchange is not None and exchange.ask not in asked:
                asked.add(exchange.ask)
                turns.append(exchange)
    for _ in range(rng.randint(0 if turns else 1, 4)):
        if rng.random() < 0.7 or manner == "one word":
            turns.append(_fact_exchange(rng, manner, held_out))
        else:
            turns.append(_talk_exchange(rng, manner))
    return turns


def drill(rng: random.Random) -> list[Message]:
    """Return many answers in few words: three questions about a few sentences, or four facts."""
    manner = "one word" if rng.random() < 0.15 else "neutral"
    lead = "" if manner == "neutral" else rng.choice(ONE_WORD)
    if rng.random() < 0.25:
        return _messages(lead, [_fact_exchange(rng, manner, False) for _ in range(4)])
    story = tell(rng, length="short") if rng.random() < 0.2 else tell_fragment(rng)
    asked = [_question_exchange(rng, manner, story) for _ in range(3)]
    turns = list({turn.ask: turn for turn in asked if turn is not None}.values())
    if not turns:
        return drill(rng)
    turns[0] = replace(turns[0], ask=f"{story.text} {turns[0].ask}")
    return _messages(lead, turns)


def _messages(system: str | None, turns: list[Exchange]) -> list[Message]:
    messages = [{"role": "system", "content": system}] if system else []
    for turn in turns:
        messages.append({"role": "user", "content": turn.ask})
        messages.append({"role": "assistant", "content": turn.answer})
    return messages


def _as_typed(rng: random.Random, ask: str) -> str:
    """Sometimes drop the capital or the full stop, as people do."""
    if rng.random() < 0.08:
        ask = ask[0].lower() + ask[1:]
    if rng.random() < 0.08:
        ask = ask.rstrip(".?! =")
    return ask


def conversation(rng: random.Random) -> list[Message]:
    """Return a whole conversation for training."""
    manner, system = draw_manner(rng)
    turns = exchanges(rng, manner)
    if rng.random() < 0.1:
        turns += exchanges(rng, manner)
    return _messages(system, [replace(turn, ask=_as_typed(rng, turn.ask)) for turn in turns])
