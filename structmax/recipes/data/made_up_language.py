"""A made-up language and its translations, in which it is known which word stands for which.

| in the source | in the target |
|---|---|
| a noun | an article, which stands for nothing, and a noun |
| an adjective and a noun | article, noun, adjective |
| a long word | two words |
| two words of a compound | one word, another for each two |
| a particle | nothing |
| a verb, anywhere | a verb at the end |
| any other word | a word |
"""

import random
from collections.abc import Iterable
from typing import NamedTuple

from structmax.recipes.data.different import different
from structmax.recipes.data.parallel import Pair

# How many words there are of each kind.
NOUNS, ADJECTIVES, OTHERS, LONG, FIRST, SECOND, VERBS, PARTICLES = 24, 12, 24, 12, 6, 6, 12, 4
# Sentences have so many units, each with a particle before it at this rate; so many have a verb.
FEWEST, MOST, PARTICLE_RATE, VERB_RATE = 3, 7, 0.2, 0.7
ADJECTIVE_RATE = 0.5


class Unit(NamedTuple):
    """Some words, what they become, and links (target word, source word) between them."""

    source: list[str]
    target: list[str]
    links: list[tuple[int, int]]
    goes_to_the_end: bool = False


def _spelt(consonants: str, vowels: str) -> list[str]:
    syllables = [consonant + vowel for consonant in consonants for vowel in vowels]
    return [first + second for first in syllables for second in syllables]


def _dealt(spelt: list[str], *counts: int) -> list[list[str]]:
    """So many words for each kind."""
    ends = [sum(counts[: k + 1]) for k in range(len(counts))]
    return [spelt[end - count : end] for count, end in zip(counts, ends, strict=True)]


SOURCE = _dealt(_spelt("bdgkpt", "aiu"), NOUNS, ADJECTIVES, OTHERS, LONG, FIRST, SECOND, VERBS, PARTICLES)
TARGET = _dealt(_spelt("flmnrsvz", "aeo"), NOUNS, ADJECTIVES, OTHERS, 2 * LONG, FIRST * SECOND, VERBS, 1)
nouns, adjectives, others, long, first, second, verbs, particles = SOURCE
target_nouns, target_adjectives, target_others, halves, compounds, target_verbs, (article,) = TARGET


def _noun_phrase(chance: random.Random) -> Unit:
    n, a = chance.randrange(NOUNS), chance.randrange(ADJECTIVES)
    if chance.random() < ADJECTIVE_RATE:
        return Unit([adjectives[a], nouns[n]], [article, target_nouns[n], target_adjectives[a]], [(1, 1), (2, 0)])
    return Unit([nouns[n]], [article, target_nouns[n]], [(1, 0)])


def _other(chance: random.Random) -> Unit:
    k = chance.randrange(OTHERS)
    return Unit([others[k]], [target_others[k]], [(0, 0)])


def _long_word(chance: random.Random) -> Unit:
    k = chance.randrange(LONG)
    return Unit([long[k]], halves[2 * k : 2 * k + 2], [(0, 0), (1, 0)])


def _compound(chance: random.Random) -> Unit:
    i, j = chance.randrange(FIRST), chance.randrange(SECOND)
    return Unit([first[i], second[j]], [compounds[SECOND * i + j]], [(0, 0), (0, 1)])


def _verb(chance: random.Random) -> Unit:
    k = chance.randrange(VERBS)
    return Unit([verbs[k]], [target_verbs[k]], [(0, 0)], goes_to_the_end=True)


KINDS = (_noun_phrase, _other, _long_word, _compound)


def sentence(chance: random.Random) -> Pair:
    """A random sentence, its translation, and the links between their words."""
    units = [chance.choice(KINDS)(chance) for _ in range(chance.randint(FEWEST, MOST))]
    if chance.random() < VERB_RATE:
        units.insert(chance.randint(0, len(units)), _verb(chance))
    source: list[str] = []
    target: list[str] = []
    links: list[tuple[int, int]] = []
    placed: list[tuple[int, Unit]] = []
    for unit in units:
        if chance.random() < PARTICLE_RATE:
            source.append(chance.choice(particles))
        placed.append((len(source), unit))
        source += unit.source
    for begin, unit in sorted(placed, key=lambda each: each[1].goes_to_the_end):
        links += [(len(target) + t, begin + s) for t, s in unit.links]
        target += unit.target
    return Pair(tuple(source), tuple(target), " ".join(target), tuple(links))


def generate(count: int, seed: int, without: Iterable[Pair] = ()) -> list[Pair]:
    """Different random sentences that are not among `without`.

    Args:
        count: how many.
        seed: of the generator; the language is always the same.
        without: pairs to leave out, such as those of a test set.

    Examples:
        >>> from structmax.recipes.data import made_up_language
        >>> (pair,) = made_up_language.generate(1, seed=0)
        >>> print(*pair.source, "-", pair.written)
        diba digu dida digu dubu dibu diki buti buka buda - laro lemo lele fole feza fesa lomo
    """
    chance = random.Random(seed)
    return different(lambda: sentence(chance), count, lambda pair: pair.source, without)
