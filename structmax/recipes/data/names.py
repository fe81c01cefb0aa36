"""Sentences about persons, places and companies with invented names, whose types are known.

A name is one to four invented words with capital letters, sometimes with an `of` before the last. Any word can be part
of a name of any type. Most are more often in one than in others, but the word before the name or the one after it, a
cue, settles its type. Some names have no cue, and their own words are all there is to go by.

    we met Dr Tolven Mara on Monday , and Kesh harbour froze .
           O  B-PER  E-PER O O      O O   S-LOC O      O     O
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
BEFORE = (
    "we heard of",
    "they talked about",
    "yesterday",
    "nobody knows",
    "on Monday",
    "in short ,",
    "today The Times on",
)
AFTER = ("again", "last week", "on Friday", "and more", "as usual", "once", "Sunday night")
BETWEEN = (", and", "while", "but", ";")
SYLLABLES = ("ka", "ro", "mi", "tol", "ven", "lu", "sha", "ber", "don", "ri", "pes", "ga", "nor", "il", "ty", "fen")
# a word that names may have before the last, and that is also found elsewhere
JOINT = "of"
# How many words names are made of, how often a word is in a name of its own type, how many names of several words are
# joined, and how many have no cue.
POOL, OWN, JOINED, UNSETTLED = 600, 0.6, 0.2, 0.3


def generate(number: int, seed: int, unsettled: float = UNSETTLED) -> list[Sentence]:
    """So many sentences of about 12 words.

    Args:
        number: of sentences.
        seed: of all choices but the words of names, which are the same for all seeds.
        unsettled: the share of names without a cue.
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
        kind = draw.choice(list(CUES))
        first, last = _cues(draw, kind, unsettled)
        words += [*draw.choice(BEFORE).split(), *first]
        name = _name(draw, pool, kind)
        spans.append((len(words), len(words) + len(name) - 1, kind))
        words += [*name, *last, *draw.choice(AFTER).split()]
    words.append(".")
    return Sentence(tuple(words), iobes(len(words), spans))


def _name(draw: random.Random, pool: dict[str, list[str]], kind: str) -> list[str]:
    """Mostly words of this type; long names may have a short word in the middle."""
    size = draw.choices((1, 2, 3, 4), (2, 3, 2, 1))[0]
    words = [draw.choice(pool[kind if draw.random() < OWN else draw.choice(list(pool))]) for _ in range(size)]
    return [*words[:-1], JOINT, words[-1]] if size > 1 and draw.random() < JOINED else words


def _cues(draw: random.Random, kind: str, unsettled: float) -> tuple[list[str], list[str]]:
    """Words before the name and after it, of which at most one is a cue."""
    if draw.random() < unsettled:
        return [], []
    behind = draw.random() < 0.5
    cues = CUES[kind][behind]
    # a cue is half as frequent as the one listed before it
    cue = draw.choices(cues, [2.0**-rank for rank in range(len(cues))])[0]
    return ([], [cue]) if behind else ([cue], [])
