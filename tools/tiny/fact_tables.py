"""The tables of facts in the model's small world, for ``facts``."""

from __future__ import annotations

from tools.tiny.words import phrase_list, word_list


def pairs(text: str) -> dict[str, str]:
    """Parse a table written as ``"cow: moo, dog: woof"``."""
    entries = (entry.partition(": ") for entry in phrase_list(text))
    return {key: value for key, _, value in entries}


SOUNDS_OF = pairs("""
    cow: moo, dog: woof, cat: meow, duck: quack, sheep: baa, pig: oink, horse: neigh, owl: hoo,
    lion: roar, bee: buzz, frog: croak, snake: hiss, crow: caw, mouse: squeak, rooster:
    cock-a-doodle-doo, donkey: hee-haw
""")
YOUNG_OF = pairs("""
    dog: puppy, cat: kitten, duck: duckling, cow: calf, horse: foal, sheep: lamb, goat: kid,
    hen: chick, deer: fawn, pig: piglet, bear: cub, goose: gosling, frog: tadpole, owl: owlet,
    kangaroo: joey, swan: cygnet
""")
HOMES_OF = pairs("""
    fish: in the water, bird: in a nest, bee: in a hive, fox: in a den, rabbit: in a burrow,
    spider: in a web, horse: in a stable, camel: in the desert, whale: in the sea, mole: under
    the ground, penguin: on the ice, monkey: in the jungle, beaver: in a lodge, ant: in an
    anthill
""")
LEGS_OF = pairs("""
    dog: four, cat: four, horse: four, spider: eight, bird: two, ant: six, bee: six, cow: four,
    hen: two, elephant: four, crab: ten, beetle: six, fish: no, snake: no, frog: four
""")
EATS = pairs("""
    rabbit: carrots, cow: grass, squirrel: nuts, monkey: bananas, cat: fish, bear: honey, mouse:
    cheese, panda: bamboo, horse: hay, bird: seeds, lion: meat, caterpillar: leaves
""")
BY_SIZE = word_list("""
    ant bee mouse frog rabbit cat dog wolf pig cow horse elephant whale
""")
COLOUR_OF = pairs("""
    grass: green, snow: white, the sky: blue, a banana: yellow, a lemon: yellow, blood: red,
    coal: black, an orange: orange, milk: white, a carrot: orange, a strawberry: red, the sun:
    yellow, a cucumber: green, chocolate: brown, a frog: green, a raven: black, the sea: blue, a
    tomato: red, an elephant: grey, a plum: purple, a flamingo: pink, a leaf: green, salt:
    white, the night: black
""")
# Two colours -> what they make.
MIXED = {
    ("blue", "yellow"): "green",
    ("red", "yellow"): "orange",
    ("red", "blue"): "purple",
    ("black", "white"): "grey",
    ("red", "white"): "pink",
}
OPPOSITES = pairs("""
    hot: cold, big: small, tall: short, day: night, happy: sad, up: down, fast: slow, old: new,
    open: closed, left: right, wet: dry, hard: soft, light: dark, full: empty, early: late,
    loud: quiet, heavy: light, good: bad, rich: poor, near: far, strong: weak, clean: dirty,
    black: white, summer: winter, yes: no, first: last, brave: afraid
""")
DAYS = word_list("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = word_list("""
    January February March April May June July August September October November December
""")
SEASONS = word_list("spring summer autumn winter")
CAPITALS = pairs("""
    France: Paris, Germany: Berlin, Spain: Madrid, Italy: Rome, England: London, Japan: Tokyo,
    China: Beijing, Russia: Moscow, Greece: Athens, Egypt: Cairo, Norway: Oslo, Sweden:
    Stockholm, Finland: Helsinki, Portugal: Lisbon, Austria: Vienna, Poland: Warsaw, Ireland:
    Dublin, Denmark: Copenhagen, Canada: Ottawa, Cuba: Havana, Peru: Lima, Kenya: Nairobi,
    Scotland: Edinburgh
""")
SIDES = pairs("""
    triangle: three, square: four, rectangle: four, pentagon: five, hexagon: six, circle: no
""")
COUNTED = word_list("one two three four five six seven eight nine ten")
LISTS = {
    "animals": word_list("cat dog horse fox owl bear cow rabbit"),
    "colours": word_list("red blue green yellow purple orange pink"),
    "fruits": word_list("apple pear plum cherry banana orange grape"),
    "birds": word_list("owl crow swan duck robin eagle heron"),
    "flowers": word_list("rose tulip daisy lily poppy violet"),
    "trees": word_list("oak birch pine willow beech maple"),
    "instruments": word_list("flute drum violin piano guitar trumpet"),
}
COUNTABLE = word_list("""
    apples pears marbles stamps shells buttons coins pencils cookies balloons kites plums
""")
