"""Answers besides stories and facts: greetings, questions about the model, poems, and the
honest answer to unknown questions.
"""

from __future__ import annotations

import random

from tools.tiny.stories import invented_name
from tools.tiny.words import phrase_list

GREETINGS = {
    "Hello!": "Hello! Would you like to hear a story?",
    "Hello": "Hello! Would you like to hear a story?",
    "Hi!": "Hi! What shall we talk about?",
    "Hi": "Hi! What shall we talk about?",
    "Hey": "Hi! What shall we talk about?",
    "Hi there!": "Hi! What shall we talk about?",
    "Good morning!": "Good morning! I hope you slept well.",
    "Good evening!": "Good evening! Is it time for a story?",
    "Good night!": "Good night! Sleep well.",
    "How are you?": "I am well, thank you. How are you?",
    "How are you today?": "I am well, thank you. How are you?",
    "I am fine.": "I am glad to hear that.",
    "I am sad.": "I am sorry to hear that. Perhaps a story will help.",
    "I am happy.": "That is good news!",
    "I am tired.": "Then a short story is just right for you.",
    "I am bored.": "Then let me tell you a story. Who shall it be about?",
    "Thank you!": "You are welcome!",
    "Thanks!": "You are welcome!",
    "Thank you very much.": "You are welcome!",
    "Goodbye!": "Goodbye! Come back soon.",
    "Bye!": "Goodbye! Come back soon.",
    "Nice to meet you.": "It is nice to meet you too.",
    "Well done!": "Thank you! I am glad that you like it.",
    "That was a nice story.": "Thank you! I am glad that you like it.",
}

_WHO = (
    "I am a very small language model that ships with pybatcher. "
    "I can tell stories and answer easy questions."
)
_CAN = "I can tell short stories, do small sums, and answer questions about animals and colours."
ABOUT_ITSELF = {
    "Who are you?": _WHO,
    "What are you?": _WHO,
    "Tell me about yourself.": _WHO,
    "What is your name?": "I have no name. You may call me Tiny.",
    "What can you do?": _CAN,
    "Can you help me?": _CAN,
    "Help": _CAN,
    "What is pybatcher?": (
        "pybatcher is the engine that I run on. It answers many callers together."
    ),
    "How big are you?": "I am tiny: less than three million numbers.",
    "How old are you?": "I was trained in less than an hour, so I am very young.",
    "Are you smart?": "No, I am only a tiny model. I am here to show how the engine works.",
    "Are you a human?": "No, I am a tiny language model.",
    "Are you a robot?": "No, I am a tiny language model.",
    "Do you like stories?": "Yes, stories are what I know best.",
    "Can you tell stories?": "Yes, just say: tell me a story.",
    "Do you dream?": "No, but I like stories about dreams.",
    "Where do you live?": "I live inside a Python process.",
}

POEMS = {
    "the sea": "The sea is wide, the sea is deep,\nit sings the little fish to sleep.\n"
    "It rolls along the sandy shore\nand brings us shells, and brings us more.",
    "the moon": "The moon looks in at every door,\nand paints with silver on the floor.\n"
    "She never speaks, she makes no sound,\nbut fills with light the sleeping ground.",
    "rain": "The rain goes tapping on the street,\nit dances with a thousand feet.\n"
    "And when it stops, then just for you\nthe sky hangs out its brightest blue.",
    "snow": "The snow came softly in the night\nand turned the whole wide world to white.\n"
    "No footprint yet, no wheel, no sound,\njust quiet feathers on the ground.",
    "a cat": "A cat lay dreaming in the sun,\nand all the mice went out to run.\n"
    "She opened half an eye to see,\nthen slept again till half past three.",
    "a tree": "A tree stood up so straight and tall,\nthe oldest neighbour of us all.\n"
    "It held a hundred birds in spring,\nand all it did was let them sing.",
    "the wind": "The wind came running down the hill,\nit could not, would not, keep quite still.\n"
    "It took my hat, it took my kite,\nand gave them to the birds in flight.",
    "a star": "A little star was all alone,\nthe farthest light that ever shone.\n"
    "But I looked up and saw it glow,\nand now it has a friend below.",
    "spring": "The spring has come on quiet feet,\nwith yellow flowers down the street.\n"
    "The brook is free, the birds are back,\nand green grows over all the black.",
    "friends": "A friend is like a light at night,\nlike half a cake, a shared delight.\n"
    "And when the road is long and steep,\na friend has secrets safe to keep.",
}

_UNKNOWN_WORDS = phrase_list("""
    quantum physics, the stock market, democracy, JavaScript, a black hole, the French
    Revolution, football, photosynthesis, machine learning, the brain, electricity, the economy,
    a computer, philosophy, climate change, the internet, chess, inflation, Python, Linux,
    Shakespeare, Einstein, music theory, a transformer, the universe, gravity, love, time,
    cancer, blockchain, war, Kubernetes, a database, the law, history, money, cooking, the
    president, energy, DNA, a virus, art, evolution, the weather, news, a GPU, attention, a
    token, Napoleon, New York, tennis, taxes, the moon landing, mathematics, calculus, religion,
    Mars, a car, an engine
""")
_UNKNOWN_FORMS = (
    "What is {x}?",
    "Explain {x}.",
    "Explain {x} to me.",
    "How does {x} work?",
    "Tell me something about {x}.",
    "What do you know about {x}?",
    "Why is {x} important?",
    "Who invented {x}?",
    "Write an essay about {x}.",
    "Give me a summary of {x}.",
    "What is the history of {x}?",
    "Can you help me with {x}?",
    "I have a question about {x}.",
    "What is the meaning of {x}?",
    "Write a program about {x}.",
    "How do I learn {x}?",
    "When was {x} discovered?",
    "What do you think about {x}?",
)
_UNKNOWN_WHOLE = (
    "Who won the world cup?",
    "What time is it?",
    "What is the meaning of life?",
    "Write a Python function.",
    "Translate this into French.",
    "Who is the president?",
    "What is the weather today?",
    "How do I fix my computer?",
    "Write a letter to my boss.",
    "What should I cook tonight?",
    "What is the best movie?",
    "Give me some advice.",
    "How far away is the sun?",
    "How many people live on Earth?",
    "What happened in 1989?",
    "Solve this equation.",
    "Write some code.",
    "Can you book a flight?",
)
UNKNOWN_ANSWER = (
    "I am sorry, I do not know that. I am a tiny model, and I know stories, small sums and animals."
)


def greeting(rng: random.Random) -> tuple[str, str]:
    return rng.choice(list(GREETINGS.items()))


def about_itself(rng: random.Random) -> tuple[str, str]:
    return rng.choice(list(ABOUT_ITSELF.items()))


def poem(rng: random.Random) -> tuple[str, str]:
    topic, text = rng.choice(list(POEMS.items()))
    form = rng.choice(
        ("Write a poem about {x}.", "Tell me a poem about {x}.", "Write a short poem about {x}.")
    )
    return form.format(x=topic), text


def unknown(rng: random.Random) -> tuple[str, str]:
    """Return a question outside the model's world, and the fixed answer to such questions."""
    if rng.random() < 0.2:
        return rng.choice(_UNKNOWN_WHOLE), UNKNOWN_ANSWER
    topic = rng.choice(_UNKNOWN_WORDS)
    if rng.random() < 0.3:
        topic = invented_name(rng) if rng.random() < 0.5 else invented_name(rng).lower()
    return rng.choice(_UNKNOWN_FORMS).format(x=topic), UNKNOWN_ANSWER
