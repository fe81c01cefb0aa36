"""Sentences about persons, places and companies with invented names, whose types are known.

A name is one to three invented words with capital letters. Any word can be part of a name of any type, but most words
are more often in one than in the others. Cues tell more: the word before the first of the names that stand side by side
has the first one's type, the word after the last has the last one's. Where one name ends and the next begins, their
words alone can tell, and some names have no cue.

    we heard of Dr Tolven Mara Kesh harbour again , and yesterday Lumi said once .
    O  O     O  O  B-PER E-PER S-LOC O      O     O O   O         S-PER O   O    O
"""

import random

from structmax.recipes.data.columns import Sentence, iobes

# For each type, cues that come before a name and cues that come after it, the most frequent first.
CUES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "LOC": (
        ("in", "near", "towards", "from", "across", "outside"),
        ("county", "harbour", "valley", "borders", "weather", "streets"),
    ),
    "ORG": (
        ("joined", "bought", "sued", "audits", "insures", "owns"),
        ("shares", "announced", "merged", "employees", "exports", "profits"),
    ),
    "PER": (
        ("Dr", "Mrs", "captain", "uncle", "widow", "poet"),
        ("said", "laughed", "resigned", "sings", "married", "slept"),
    ),
}
OPENINGS = (
    "we heard of",
    "they talked about",
    "yesterday",
    "nobody knows",
    "on Monday",
    "in short ,",
    "so The Times on",
)
ENDINGS = ("again", "last week", "on Friday", "and more", "as usual", "once", "Sunday night")
BETWEEN = (", and", "while", "but", ";")
SYLLABLES = ("ka", "ro", "mi", "tol", "ven", "lu", "sha", "ber", "don", "ri", "pes", "ga", "nor", "il", "ty", "fen")
# How many words names are made of, how often a word is in a name of its own type, how often two names stand side by
# side, and how many cues are left out.
POOL, OWN, NEIGHBOURS, UNSETTLED = 600, 0.7, 0.5, 0.15


def generate(number: int, seed: int, unsettled: float = UNSETTLED) -> list[Sentence]:
    """So many sentences of about 13 words.

    Args:
        number: of sentences.
        seed: of all choices but the words of names, which are the same for all seeds.
        unsettled: the share of cues that are left out.
    """
    draw, pool = random.Random(seed), _pool()
    return [_sentence(draw, pool, unsettled) for _ in range(number)]


def _pool() -> dict[str, list[str]]:
    """The words of names by the type in which they are most often."""
    draw, kinds = random.Random(0), list(CUES)
    words: dict[str, None] = {}
    while len(words) < POOL:
        words["".join(draw.choices(SYLLABLES, k=draw.randint(2, 3))).capitalize()] = None
    listed = list(words)
    return {kind: listed[place :: len(kinds)] for place, kind in enumerate(kinds)}


def _sentence(draw: random.Random, pool: dict[str, list[str]], unsettled: float) -> Sentence:
    words: list[str] = []
    spans: list[tuple[int, int, str]] = []
    for clause in range(draw.randint(1, 2)):
        if clause:
            words += draw.choice(BETWEEN).split()
        kinds = draw.sample(list(CUES), 2 if draw.random() < NEIGHBOURS else 1)
        words += draw.choice(OPENINGS).split()
        # a single name has one cue, before it or after it
        sides = (True, True) if len(kinds) == 2 else draw.choice(((True, False), (False, True)))
        if sides[0]:
            words += _cue(draw, CUES[kinds[0]][0], unsettled)
        for kind in kinds:
            name = _name(draw, pool, kind)
            spans.append((len(words), len(words) + len(name) - 1, kind))
            words += name
        if sides[1]:
            words += _cue(draw, CUES[kinds[-1]][1], unsettled)
        words += draw.choice(ENDINGS).split()
    words.append(".")
    return Sentence(tuple(words), iobes(len(words), spans))


def _name(draw: random.Random, pool: dict[str, list[str]], kind: str) -> list[str]:
    """Mostly words of this type."""
    size = draw.choices((1, 2, 3), (2, 3, 2))[0]
    return [draw.choice(pool[kind if draw.random() < OWN else draw.choice(list(pool))]) for _ in range(size)]


def _cue(draw: random.Random, cues: tuple[str, ...], unsettled: float) -> list[str]:
    """One of the cues, each half as often as the one listed before it, or none."""
    return [] if draw.random() < unsettled else draw.choices(cues, [2.0**-rank for rank in range(len(cues))])
