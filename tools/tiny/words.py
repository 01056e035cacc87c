"""The words of the stories.

Each table maps a canonical word (the fact that a question may ask for) to its form in a
sentence.
"""

from __future__ import annotations


def word_list(text: str) -> tuple[str, ...]:
    """Split a text into words, for tables that are easier to read in a row."""
    return tuple(text.split())


def phrase_list(text: str) -> tuple[str, ...]:
    """Split a text into phrases at commas."""
    return tuple(" ".join(text.split()).split(", "))


GIRLS = word_list("""
    Mia Anna Lily Nora Ella Ruby Rosa Clara Ida Maya Zoe Alma Daisy Hazel Iris Jane Kate Lena
    Lucy Mabel Nina Olive Pearl Poppy Sara Stella Tessa Vera Willa Yara Amina Bella Cora Dora
    Edith Freya Greta Hanna Ivy June
""")
BOYS = word_list("""
    Ben Tom Sam Leo Max Finn Otto Hugo Oscar Felix Adam Emil Noah Jonas Paul Theo Henry Jack
    Luca Milo Nico Oliver Peter Rafi Simon Toby Victor Walter Yusuf Alfie Bruno Carl David Elias
    Frank George Harry Ivan Jasper Karim
""")

# The parts of names that nobody has heard before, so that the model learns to copy.
SYLLABLES = word_list("""
    ba be bo da do fa fi ga go ka ki ko la li lo ma mi mo na no pa po ra ri ro sa ta ti to va vi
    wa za zo zu
""")
NAME_ENDINGS = word_list("n r s l x nd rk m t")

CHILDREN = ("girl", "boy")
CREATURES = word_list("""
    fox rabbit bear mouse owl hedgehog duck cat dog turtle squirrel badger frog goat dragon
    robot otter crow pony penguin snail
""")

TRAITS = word_list("""
    little brave curious clever quiet cheerful gentle shy kind young merry patient thoughtful
    lively
""")

COLOURS = word_list("""
    red blue green yellow orange purple white silver golden pink brown black grey
""")

# Things that can be carried, given, lost and mended.
NOUNS = word_list("""
    kite ball scarf lantern drum book umbrella key bell hat basket bucket whistle marble ribbon
    cup spoon blanket feather coin flute box
""")

PLACES = {
    "river": "by the river",
    "forest": "in the forest",
    "hill": "on the hill",
    "harbour": "near the harbour",
    "village": "in the village",
    "meadow": "beside the meadow",
    "lighthouse": "near the lighthouse",
    "lake": "by the lake",
    "valley": "in the valley",
    "sea": "by the sea",
    "mill": "next to the old mill",
    "orchard": "behind the orchard",
    "bridge": "near the bridge",
    "island": "on the island",
    "castle": "behind the castle",
    "mountain": "at the foot of the mountain",
    "market": "close to the market",
    "station": "across from the station",
}

WEATHERS = word_list("sunny windy rainy snowy foggy cloudy cold warm frosty stormy")
TIMES = word_list("morning afternoon evening")

FOODS = {
    "soup": "a bowl of hot soup",
    "bread": "a slice of fresh bread",
    "cake": "a piece of honey cake",
    "pie": "a piece of apple pie",
    "pancakes": "a plate of pancakes",
    "cocoa": "a cup of cocoa",
    "tea": "a cup of tea",
    "porridge": "a bowl of warm porridge",
    "cheese": "a piece of cheese",
    "nuts": "a handful of nuts",
}

# Where a small thing, or a small animal, may turn up.
SPOTS = {
    "bush": "under a bush",
    "stone": "behind a big stone",
    "leaves": "in a pile of leaves",
    "well": "next to the well",
    "log": "inside a hollow log",
    "gate": "beside the garden gate",
    "bench": "under a wooden bench",
    "wall": "at the foot of the wall",
    "barn": "behind the barn",
    "tree": "under a tall tree",
    "cart": "under an empty cart",
    "grass": "in the long grass",
}

SEARCHED = (
    "under the bed",
    "behind the door",
    "in the cupboard",
    "under the table",
    "on every shelf",
    "behind the curtains",
    "in the old chest",
    "under the stairs",
)

BABIES = word_list("kitten puppy duckling lamb chick fawn gosling kid cub owlet")

# Skill -> what went wrong the first time.
SKILLS = {
    "swim": "sank like a stone",
    "whistle": "only blew air",
    "skate": "slipped and sat down hard",
    "dance": "tripped over a chair",
    "sing": "croaked like an old door",
    "juggle": "dropped everything",
    "paint": "got more paint on the floor than on the paper",
    "bake bread": "burned the crust",
    "climb trees": "slid back down with a bump",
    "fly a kite": "ran into a hedge",
    "row a boat": "went round and round in circles",
    "tie knots": "tied a knot around a table leg",
}

NUMBERS = {
    "2": "two",
    "3": "three",
    "4": "four",
    "5": "five",
    "6": "six",
    "7": "seven",
    "8": "eight",
    "9": "nine",
}

FLOWERS = word_list("""
    sunflowers tulips roses daisies pumpkins carrots beans strawberries poppies lilies
""")

BUILDINGS = {
    "bridge": "a bridge of planks",
    "raft": "a raft of logs",
    "tower": "a tower of stones",
    "tree house": "a house in a tree",
    "windmill": "a windmill of paper and sticks",
    "hut": "a hut of branches",
    "snow castle": "a castle of snow",
    "swing": "a swing of rope",
}

SOUNDS = {
    "tap": "tap, tap, tap",
    "scratch": "scratch, scratch, scratch",
    "knock": "knock, knock",
    "drip": "drip, drop, drip",
    "hoo": "hoo, hoo, hoo",
    "rustle": "rustle, rustle",
    "squeak": "squeak, squeak",
}

LANDMARKS = {
    "waterfall": "past the waterfall",
    "cave": "past the dark cave",
    "oak": "around the old oak",
    "fields": "across the fields",
    "fence": "along the broken fence",
    "stream": "over the narrow stream",
    "stones": "between the standing stones",
    "chapel": "behind the chapel",
}

TREATS = word_list("""
    apples biscuits shells marbles postcards candles pears buttons pebbles chestnuts
""")


def with_article(phrase: str) -> str:
    """``phrase`` with "a" or "an" before it, by its first letter (no word here is an exception)."""
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"
