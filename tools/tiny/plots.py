"""Half of the plots; ``more_plots`` has the others, ``plot`` the format."""

from __future__ import annotations

from tools.tiny.plot import FRIENDS_NOW, Plot, ask, may, must
from tools.tiny.words import word_list

_LOST = Plot(
    "lost",
    ("a lost {noun}", "losing {a_noun}", "somebody who lost {a_thing}"),
    (
        must(
            "{He} had {a_thing} and took it everywhere.",
            "{His} favourite treasure was {a_thing}.",
            "{He} owned only one treasure, {a_thing}.",
            "What {he} loved most was {a_thing}.",
        ),
        may(
            "It had been a gift from {his} grandmother.",
            "It was old, but {he} thought it was the finest {noun} in the world.",
            "At night it lay next to {his} pillow.",
        ),
        must(
            "One {weather} {time}, the {noun} was gone.",
            "But one {weather} {time}, {he} could not find it anywhere.",
            "Then, one {weather} {time}, {he} reached for it, and it was not there.",
        ),
        may(
            "{He} looked {search} and {search2}, but it was not there.",
            "{He} searched {search}, {search2} and even in the teapot.",
        ),
        must(
            "{hero} felt very sad.",
            "{hero} sat down and began to cry.",
            '"I will never see it again," {he} thought sadly.',
        ),
        must(
            '{friend_full} saw {him} and asked, "What is wrong?"',
            'Just then {friend_full} came along the path and asked, "Why do you look so sad?"',
        ),
        may('"My {noun} is gone," said {hero}.', '"I have lost my {thing}," {he} answered.'),
        must(
            '"Do not worry, we will look for it together," said {friend}.',
            '"Two pairs of eyes see more than one," said {friend}, "so let us look together."',
        ),
        may(
            "They walked slowly and looked behind every stone.",
            "They asked everyone they met, but nobody had seen it.",
            "They looked high and low until their feet were tired.",
        ),
        must(
            "At last they found the {noun} {spot}.",
            "And there it was, {spot}!",
            "Suddenly {friend} called out, because the {noun} was lying {spot}.",
        ),
        may(
            "A magpie must have dropped it there.",
            "It was a little dusty, but it was not broken.",
        ),
        must(
            "{hero} was so happy that {he} danced all the way home.",
            "{hero} laughed and thanked {friend} with all {his} heart.",
            "{hero} hugged {friend} and felt happy again.",
        ),
        FRIENDS_NOW,
    ),
    (
        ask("What did {hero} lose?", answer="{hero} lost {a_thing}.", short="{Noun}."),
        ask("What colour was the {noun}?", answer="The {noun} was {colour}.", short="{Colour}."),
        ask("Where was the {noun} found?", answer="The {noun} was found {spot}."),
        ask("Who helped {hero}?", answer="{friend_full} helped {him}.", short="{friend}."),
        ask("How did {hero} feel at the end?", answer="{hero} felt happy.", short="Happy."),
    ),
)

_BABY = Plot(
    "baby",
    ("a lost {baby}", "{a_baby} that was lost", "somebody who found {a_baby}"),
    (
        must(
            "One {weather} {time}, {hero} heard a small voice {spot}.",
            "One {weather} {time}, {he} heard somebody crying {spot}.",
        ),
        must(
            "It was {a_baby} that had lost its mother.",
            "There sat {a_baby}, all alone.",
        ),
        must(
            '"Do not be afraid, I will bring you home," said {hero}.',
            '"Please do not cry," said {hero}, "we will find your mother."',
        ),
        may(
            "{He} gave it {food}, and it stopped crying.",
            "{He} shared {food} with the {baby}, and it felt a little better.",
        ),
        must(
            "Together they went {landmark} and {landmark2}.",
            "{He} carried the {baby} {landmark} and {landmark2}.",
        ),
        may(
            "The way was long, and the {baby} grew tired.",
            "{hero} sang a song so that the {baby} would not be afraid.",
        ),
        must(
            "Then they met {friend_full}, who knew everyone.",
            "On the way they met {friend_full}.",
        ),
        must(
            '"I saw its mother {in_place2}," said {friend}.',
            '"A worried mother is waiting {in_place2}," said {friend}.',
        ),
        must(
            "They ran there as fast as they could, and the {baby} jumped for joy.",
            "They hurried there, and the {baby} was soon in its mother's arms.",
        ),
        may(
            '"Thank you for your kind heart," said the mother.',
            "The mother thanked them and gave {hero} {a_thing}.",
        ),
        must(
            "{hero} went home tired, but proud and happy.",
            "{hero} felt proud, and the walk home seemed very short.",
        ),
        FRIENDS_NOW,
    ),
    (
        ask("What did {hero} find?", answer="{hero} found {a_baby}.", short="{Baby}."),
        ask("Where was the {baby}?", answer="The {baby} was {spot}."),
        ask("Where was the mother?", answer="The mother was {in_place2}.", short="{Place2}."),
        ask("What did the {baby} eat?", answer="It had {food}.", short="{Food_word}."),
        ask("Who knew where the mother was?", answer="{friend_full} knew.", short="{friend}."),
        ask("How did {hero} feel at the end?", answer="{hero} felt proud.", short="Proud."),
    ),
)

_STORM = Plot(
    "storm",
    ("a storm", "a stormy night", "a guest in the rain"),
    (
        must(
            "One cold evening, a great storm came over the land.",
            "One evening, the sky turned black and a storm began.",
        ),
        may(
            "The wind howled and the rain beat against the window.",
            "Thunder rolled, and every door rattled.",
        ),
        must(
            "{hero} was sitting by the fire with {food} when somebody knocked.",
            "{hero} was just warming {food} when there was a knock at the door.",
        ),
        may(
            '"Who can that be on such a night?" {he} wondered.',
            "{He} was a little afraid, but {he} took the lamp and went to see.",
        ),
        must(
            "Outside stood {friend_full}, wet from head to toe.",
            "It was {friend_full}, cold and dripping with rain.",
        ),
        must(
            '"My roof has blown away," said {friend}, "may I come in?"',
            '"I have lost my way," said {friend}, "may I stay until morning?"',
        ),
        must(
            '"Come in and sit by the fire," said {hero}, and {he} shared {his} supper.',
            '"Of course you may," said {hero}, and they ate together.',
        ),
        may(
            "They told each other stories until the candle had burned down.",
            "Soon the storm did not seem so loud any more.",
        ),
        must(
            "In the morning the sun was shining, and a rainbow stood in the sky.",
            "When they woke up, the storm was over and the birds were singing.",
        ),
        must(
            "To say thank you, {friend} gave {hero} {a_thing}.",
            '"You have a good heart," said {friend}, and gave {him} {a_thing}.',
        ),
        may("{hero} kept the {noun} by the window for the rest of {his} life."),
        FRIENDS_NOW,
    ),
    (
        ask("Who knocked at the door?", answer="{friend_full} knocked.", short="{friend}."),
        ask("What did {hero} get?", answer="{hero} got {a_thing}.", short="{Noun}."),
        ask("What colour was the {noun}?", answer="The {noun} was {colour}.", short="{Colour}."),
        ask("What did they eat?", answer="They shared {food}.", short="{Food_word}."),
        ask("Who gave {hero} the {noun}?", answer="{friend_full} did.", short="{friend}."),
    ),
)

_SKILL = Plot(
    "skill",
    ("learning to {skill}", "somebody who wanted to {skill}"),
    (
        must(
            "More than anything, {he} wanted to learn to {skill}.",
            "{He} had one wish: {he} wanted to {skill}.",
        ),
        must(
            "One {weather} {time}, {he} tried for the first time, but {he} {mishap}.",
            "So one {weather} {time} {he} tried it, but {he} {mishap}.",
        ),
        may(
            "A crow on the fence laughed out loud.",
            "Everybody who saw it laughed.",
            "{He} tried a second time, and it was no better.",
        ),
        must(
            '"I will never learn it," said {hero}.',
            '"This is much too hard for me," {hero} said with a sigh.',
        ),
        must(
            '"I said that too, once," said {friend_full}, who had watched {him}.',
            "But {friend_full} had seen {him} and came closer.",
        ),
        must(
            '"Go slowly, and do not be afraid of a mistake," said {friend}.',
            '"Nobody can do it on the first day," said {friend}, "so try a little every day."',
        ),
        may(
            "They practised together for {number} days.",
            "For {number} weeks, {friend} came every {time} to help.",
        ),
        must(
            "{hero} tried again and again, and each time it went a little better.",
            "So {hero} practised every day, even when {he} was tired.",
        ),
        must(
            "And one day, {he} could {skill} better than anyone else.",
            "At last the day came when {hero} could {skill} without any help.",
        ),
        must(
            "{hero} was so proud that {he} gave {friend} {a_thing}.",
            "To thank {friend}, {hero} gave {f_him} {a_thing}.",
        ),
        may(
            '"The best gift is to see you smile," said {friend}.',
            "Today {hero} teaches the little ones, and {he} never laughs at a mistake.",
        ),
        FRIENDS_NOW,
    ),
    (
        ask(
            "What did {hero} want to learn?",
            "What did {hero} learn?",
            answer="{hero} learned to {skill}.",
        ),
        ask("Who helped {hero}?", answer="{friend_full} helped {him}.", short="{friend}."),
        ask("What did {friend} get?", answer="{friend} got {a_thing}.", short="{Noun}."),
        ask("What colour was the {noun}?", answer="The {noun} was {colour}.", short="{Colour}."),
        ask("How did {hero} feel at the end?", answer="{hero} felt proud.", short="Proud."),
    ),
)

_BIRTHDAY = Plot(
    "birthday",
    ("a birthday", "a birthday gift", "the best gift"),
    (
        must(
            "It was almost the birthday of {friend_full}, and {hero} had no gift.",
            "{hero} had a friend, {friend_full}, whose birthday was near.",
        ),
        must(
            "{He} counted {his} coins, but there were only {number}.",
            "{He} had only {number} coins, and that was not enough for a gift.",
        ),
        may(
            "{He} thought about it all day and half the night.",
            '"What can I give?" {he} asked the moon, but the moon said nothing.',
        ),
        must(
            '"Then I will make something myself," said {hero}.',
            "Then {he} had an idea: {he} would make the gift with {his} own hands.",
        ),
        must(
            "{He} worked from morning until night and made {a_thing}.",
            "One {weather} {time}, {he} sat down and made {a_thing}.",
        ),
        may(
            "It was not perfect, but it was made with love.",
            "{He} wrapped it in paper and tied it with a string.",
        ),
        must(
            "On the birthday there was {food} for everyone, and many fine gifts.",
            "At the party the guests had {food}, and they all brought gifts.",
        ),
        must(
            "{hero} was shy and put the {noun} behind the others.",
            "When {hero} saw the other gifts, {he} wanted to hide the {noun}.",
        ),
        must(
            'But {friend} held it up and said, "This is the best gift of all!"',
            "But {friend} opened it last and could not stop smiling.",
        ),
        may('"How did you know that I wanted {a_noun}?" asked {friend}.'),
        must(
            "{hero} was happier than {he} had ever been.",
            "{hero} felt warm inside, as if the sun were shining in {his} heart.",
        ),
        FRIENDS_NOW,
    ),
    (
        ask("Whose birthday was it?", answer="It was the birthday of {friend_full}."),
        ask("What did {hero} make?", answer="{hero} made {a_thing}.", short="{Noun}."),
        ask("What colour was the {noun}?", answer="The {noun} was {colour}.", short="{Colour}."),
        ask(
            "How many coins did {hero} have?",
            answer="{hero} had {number} coins.",
            short="{Number}.",
        ),
        ask("What did the guests eat?", answer="They had {food}.", short="{Food_word}."),
    ),
    nouns=word_list("kite scarf lantern drum basket hat blanket box flute whistle ribbon cup"),
)

_SOUND = Plot(
    "sound",
    ("a strange sound", "a sound in the night", "a scary night"),
    (
        must(
            "One {weather} night, a strange sound woke {him}: {sound}.",
            "In the middle of a {weather} night, {he} heard something: {sound}.",
        ),
        must(
            '"Is it a monster?" {hero} whispered.',
            "{hero} pulled the blanket over {his} head and did not move.",
        ),
        must("But the sound came again: {sound}.", "Then it came closer: {sound}."),
        must(
            "At last {hero} took a lamp and went outside on tiptoe.",
            "{hero} took a deep breath, opened the door and looked out.",
        ),
        may(
            "The moon was hiding, and the trees looked like giants.",
            "{His} knees were shaking, but {he} went on.",
        ),
        must(
            "There was no monster at all, only {friend_full}, who was stuck {spot}.",
            "And what did {he} see {spot}? It was {friend_full}, who could not get out!",
        ),
        may(
            '"I dropped my {thing} and crawled in after it," said {friend}.',
            '"I was looking for my {thing}," {friend} said quietly.',
        ),
        must(
            "{hero} pulled once, {he} pulled twice, and {friend} was free.",
            "{hero} pulled with all {his} strength until {friend} was free.",
        ),
        must(
            '"I thought you were a monster!" said {hero}, and they both laughed.',
            "They laughed so loudly that all the neighbours woke up.",
        ),
        may("Then they sat in the kitchen and shared {food}."),
        must(
            "Since that night, {hero} has not been afraid of the dark.",
            "{hero} went back to bed and was not afraid any more.",
        ),
        FRIENDS_NOW,
    ),
    (
        ask("Who made the sound?", answer="{friend_full} made the sound.", short="{friend}."),
        ask("Was it a monster?", answer="No, it was {friend_full}.", short="No."),
        ask("Where was {friend} stuck?", answer="{friend} was stuck {spot}."),
        ask(
            "What was {friend} looking for?",
            answer="{friend} was looking for {a_thing}.",
            short="{Noun}.",
        ),
        ask("What colour was the {noun}?", answer="The {noun} was {colour}.", short="{Colour}."),
        ask("What did they eat?", answer="They shared {food}.", short="{Food_word}."),
    ),
)

FIRST_PLOTS = (_LOST, _BABY, _STORM, _SKILL, _BIRTHDAY, _SOUND)
