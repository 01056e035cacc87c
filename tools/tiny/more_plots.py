"""The other half of the plots, and all of them together."""

from __future__ import annotations

from tools.tiny.plot import FRIENDS_NOW, Plot, ask, may, must
from tools.tiny.plots import FIRST_PLOTS
from tools.tiny.words import word_list

_GARDEN = Plot(
    "garden",
    ("a garden", "growing {flowers}", "waiting for {flowers}"),
    (
        must(
            "One {weather} {time}, {he} planted {number} seeds behind the house.",
            "One {weather} {time}, {he} put {number} seeds into the dark earth.",
        ),
        may(
            "They were a gift from {friend_full}.",
            "{He} had found them in an old box.",
        ),
        must(
            "Every day {he} brought them water, but nothing happened.",
            "{He} gave them water every day and waited, but the earth stayed bare.",
        ),
        may(
            "A week went by, and then another.",
            "{He} even sang to them, very softly.",
        ),
        must(
            '"Perhaps they are broken," {hero} said sadly.',
            '"I think they are asleep for ever," said {hero}.',
        ),
        must(
            '"Seeds need time, just like friends," said {friend_full}.',
            '"You must wait a little longer," said {friend_full}.',
        ),
        may(
            "So they sat down with {food} and waited together.",
            "{friend} lent {him} {a_thing}, so that the waiting would not be so long.",
        ),
        must(
            "And one morning, {number} small green leaves looked up at the sun.",
            "Then the rain came, and the next day the first green leaf was there.",
        ),
        must(
            "By the end of summer, the garden was full of {flowers}.",
            "When summer came, there were more {flowers} than {he} could count.",
        ),
        must(
            "{hero} gave half of them to {friend}, because joy grows when it is shared.",
            "{hero} filled a basket for {friend} and was very happy.",
        ),
        FRIENDS_NOW,
    ),
    (
        ask(
            "How many seeds did {hero} plant?",
            answer="{hero} planted {number} seeds.",
            short="{Number}.",
        ),
        ask(
            "What grew in the garden?",
            answer="There were {flowers} in the garden.",
            short="{Flowers}.",
        ),
        ask("Who told {hero} to wait?", answer="{friend_full} did.", short="{friend}."),
        ask("What did they eat?", answer="They had {food}.", short="{Food_word}."),
        ask("Did {hero} share?", answer="Yes, {hero} shared with {friend}.", short="Yes."),
    ),
)

_QUARREL = Plot(
    "quarrel",
    ("a quarrel", "two friends who quarrel", "sharing {a_noun}"),
    (
        must(
            "One {weather} {time}, {he} was walking with {friend_full} when they saw {a_thing}.",
            "One {weather} {time}, {hero} and {friend_full} found {a_thing} {spot}.",
        ),
        must(
            '"It is mine, I saw it first!" cried {hero}.',
            '"I want it!" said {hero}.',
        ),
        must('"No, it is mine!" said {friend}.', '"But I want it too!" said {friend}.'),
        must(
            "They pulled and pulled, until the {noun} broke in two.",
            "Each of them pulled on one side, and with a loud crack the {noun} broke.",
        ),
        may(
            "Then it was very quiet.",
            "They looked at the pieces, and nobody said a word.",
        ),
        must(
            "{hero} went home alone, and even {food} did not taste good.",
            "{hero} ran home and sat there all alone with {food}.",
        ),
        may(
            '"{A_noun} is only a thing," {he} thought, "but a friend is a friend."',
            "The house was too quiet, and the clock ticked too loudly.",
        ),
        must(
            "In the end {he} took some glue and went to see {friend}.",
            "So {he} took the two pieces and knocked at {friend}'s door.",
        ),
        must(
            '"I am sorry," they both said at the same time.',
            '"I am sorry," said {hero}, and {friend} said, "I am sorry too."',
        ),
        must(
            "They mended the {noun} together, and it was stronger than before.",
            "Together they glued the {noun}, and only a thin line was left.",
        ),
        must(
            "Now they share it: one day it is with {hero}, and the next day with {friend}.",
            "Since then the {noun} has belonged to both of them.",
        ),
        FRIENDS_NOW,
    ),
    (
        ask("What did they find?", answer="They found {a_thing}.", short="{Noun}."),
        ask("What colour was the {noun}?", answer="The {noun} was {colour}.", short="{Colour}."),
        ask("What broke?", answer="The {noun} broke.", short="{Noun}."),
        ask("Who was {hero}'s friend?", answer="It was {friend_full}.", short="{friend}."),
        ask("Are they still friends?", answer="Yes, they said sorry to each other.", short="Yes."),
    ),
    nouns=word_list("kite lantern drum umbrella basket bucket whistle cup spoon flute box bell"),
)

_BUILDING = Plot(
    "building",
    ("building {a_building}", "somebody who built {a_building}"),
    (
        must(
            "One {weather} {time}, {he} decided to build {a_building}.",
            "{He} had a plan: one {weather} {time}, {he} began to build {a_building}.",
        ),
        must(
            "{He} worked for {number} days, all by {him}self.",
            "It took {number} days, and nobody was allowed to help.",
        ),
        may(
            "When it was done, it looked very fine.",
            "{He} put {a_thing} on top, so that everyone could see it.",
        ),
        must(
            "But that night the wind came, and in the morning it lay in pieces.",
            "But as soon as {he} touched it, everything fell down with a crash.",
        ),
        must(
            "{hero} wanted to give up.",
            '"All my work was for nothing," said {hero}.',
        ),
        must(
            'Then {friend_full} looked at the pieces and said, "Four hands are better than two."',
            '"I know how to make it stronger," said {friend_full}, "but I need your help."',
        ),
        may(
            "First they had {food}, because nobody can build on an empty stomach.",
            "{friend} knew everything about knots, and {hero} was good at finding wood.",
        ),
        must(
            "They started again, slowly and carefully.",
            "So they began again, and this time they did it together.",
        ),
        must(
            "When the wind came back, the {building} did not even shake.",
            "And this time the {building} stood as firm as a rock.",
        ),
        must(
            '"It is ours," said {hero} proudly.',
            "{hero} was proud, and {friend} was proud too.",
        ),
        FRIENDS_NOW,
    ),
    (
        ask("What did {hero} build?", answer="{hero} built {a_building}."),
        ask("How many days did it take?", answer="It took {number} days.", short="{Number}."),
        ask("Who helped {hero}?", answer="{friend_full} helped {him}.", short="{friend}."),
        ask("What was on top?", answer="There was {a_thing} on top.", short="{Noun}."),
        ask("How did {hero} feel at the end?", answer="{hero} felt proud.", short="Proud."),
    ),
    nouns=word_list("lantern bell scarf hat kite umbrella ribbon feather"),
)

_FOG = Plot(
    "fog",
    ("the fog", "a light in the fog", "getting lost in the fog"),
    (
        must(
            "One {time}, {he} went to visit {his} aunt, who lived {in_place2}.",
            "One {time}, {he} set out to bring {food} to {his} aunt, who lived {in_place2}.",
        ),
        must(
            "On the way home, a thick fog came up, as white as milk.",
            "On the way back, the fog fell over the land, and the path was gone.",
        ),
        may(
            "{He} could not see {his} own feet.",
            "Every tree looked like a stranger.",
        ),
        must(
            "{hero} went {landmark}, then {landmark2}, and then {he} was quite lost.",
            "{He} thought that {he} was going {landmark}, but {he} was going {landmark2}.",
        ),
        must(
            '"Is anybody there?" {he} called, but there was no answer.',
            "{hero} was afraid and stood very still.",
        ),
        must(
            "Then, far away, {he} saw a little light.",
            "All at once a small light shone through the fog.",
        ),
        must(
            "It was {friend_full}, who was swinging a lamp.",
            "{friend_full} stood there, holding a lamp up high.",
        ),
        must(
            '"I light it on every foggy day," said {friend}, "in case somebody is lost."',
            '"I thought you might need a light," said {friend}.',
        ),
        must(
            "{friend} took {hero} home, and not one step went wrong.",
            "Side by side they went, and soon {hero} saw {his} own front door.",
        ),
        must(
            "The next day {hero} brought {friend} {a_thing} to say thank you.",
            "{hero} was so thankful that {he} gave {friend} {his} {thing}.",
        ),
        may("Now there are two lamps {in_place} when the fog comes."),
        FRIENDS_NOW,
    ),
    (
        ask("Where did the aunt live?", answer="The aunt lived {in_place2}.", short="{Place2}."),
        ask("Who had the lamp?", answer="{friend_full} had the lamp.", short="{friend}."),
        ask("Who helped {hero}?", answer="{friend_full} helped {him}.", short="{friend}."),
        ask("What did {friend} get?", answer="{friend} got {a_thing}.", short="{Noun}."),
        ask("What colour was the {noun}?", answer="The {noun} was {colour}.", short="{Colour}."),
        ask("Why did {hero} get lost?", answer="{hero} got lost because of the fog."),
    ),
)

_MAP = Plot(
    "map",
    ("a treasure map", "an old map", "a treasure"),
    (
        must(
            "One {weather} {time}, {he} found an old map {spot}.",
            "One {weather} {time}, an old map fell out of a book that {he} was reading.",
        ),
        must(
            '"It shows a treasure!" said {hero}, and {he} ran to tell {friend_full}.',
            "{He} showed it to {friend_full}, and they set out at once.",
        ),
        may(
            "They took {food} with them and {a_thing}.",
            "They took a spade, a rope and {a_thing}.",
        ),
        must(
            "The map led them {landmark} and {landmark2}.",
            "They followed it {landmark}, and from there {landmark2}.",
        ),
        may(
            "They had to rest {number} times, because the way was steep.",
            '"Are we there yet?" {friend} asked {number} times.',
        ),
        must(
            "Where the map had a cross, they began to dig.",
            "At the place with the cross, {hero} began to dig, and {friend} helped.",
        ),
        must(
            "Soon the spade hit something hard: it was a wooden chest.",
            "Deep in the earth they found a small chest.",
        ),
        must(
            "There was no gold in it, only some {treats} and a letter.",
            "When they opened it, they saw {treats} and a yellow piece of paper.",
        ),
        must(
            '"The real treasure is the friend who came with you," it said.',
            '"Whoever reads this is rich," it said, "because you did not come alone."',
        ),
        must(
            "{hero} looked at {friend} and smiled, because it was true.",
            "They shared the {treats} and laughed all the way home.",
        ),
        may("They hid the map again, so that others could find it."),
        FRIENDS_NOW,
    ),
    (
        ask("What did {hero} find?", answer="{hero} found an old map.", short="Map."),
        ask("Who went with {hero}?", answer="{friend_full} went with {him}.", short="{friend}."),
        ask(
            "What was in the chest?", answer="There were {treats} in the chest.", short="{Treats}."
        ),
        ask("What did they take with them?", answer="They took {a_thing} with them."),
        ask(
            "Was there any gold?", answer="No, there were only {treats} and a letter.", short="No."
        ),
    ),
)

_TREE = Plot(
    "tree",
    ("{a_noun} in a tree", "{a_thing} that got stuck", "{a_thing} in a tree"),
    (
        must(
            "One {weather} {time}, {he} went out with {his} new {thing}.",
            "One {weather} {time}, {he} was showing {his} {thing} to everyone.",
        ),
        must(
            "A passing goose picked it up and dropped it at the top of a tall tree.",
            "A cheeky magpie snatched it and dropped it in the highest tree.",
        ),
        must(
            "{hero} jumped as high as {he} could, but the branch was too far away.",
            "{hero} tried to climb up, but {he} slid down again.",
        ),
        may(
            "{He} threw a stick, and the stick got stuck too.",
            "{He} asked the tree politely, but the tree only rustled.",
        ),
        must(
            "{friend_full} was passing by with a ladder on {f_his} back.",
            "Then {friend_full} came along and looked up.",
        ),
        must(
            '"Climb onto my back," said {friend}.',
            '"I will hold you, and you will reach it," said {friend}.',
        ),
        may("They wobbled to the left, and they wobbled to the right."),
        must(
            "{hero} stretched out one hand and could just touch the {noun}.",
            "{hero} reached for the {noun}, a little higher, and a little higher still.",
        ),
        must(
            "Then they both fell into the soft grass, and the {noun} fell on top of them.",
            "Down came the {noun}, down came {hero}, and nobody was hurt.",
        ),
        must(
            "They laughed, and {hero} let {friend} have the {noun} for the rest of the day.",
            '"Thank you," said {hero}, "you must play with me from now on."',
        ),
        may("In the evening they shared {food} under the very same tree."),
        FRIENDS_NOW,
    ),
    (
        ask("What got stuck?", answer="The {thing} got stuck.", short="{Noun}."),
        ask("What colour was the {noun}?", answer="The {noun} was {colour}.", short="{Colour}."),
        ask("Who helped {hero}?", answer="{friend_full} helped {him}.", short="{friend}."),
        ask(
            "Where did the {noun} get stuck?", answer="It got stuck in a tall tree.", short="Tree."
        ),
        ask("What did they eat?", answer="They shared {food}.", short="{Food_word}."),
    ),
    nouns=word_list("kite ball scarf hat ribbon feather umbrella whistle key basket"),
)

PLOTS = (*FIRST_PLOTS, _GARDEN, _QUARREL, _BUILDING, _FOG, _MAP, _TREE)
