"""Generated pairs of sentences in which meanings of single words decide whether the second follows from the first.

The lexicon has families of words, each with senses that exclude one another, such as *dog, hound* and *cat, kitten*,
and a word for any of them, *animal*. A premise has words of several families. The hypothesis says some of them again,
in the same sense or more generally, and so it follows (entailment), unless one word is of another sense
(contradiction), of a family that the premise does not speak of, or more special than in the premise (neutral). Words
of one family are counterparts.
"""

import random
from dataclasses import dataclass

from structmax.recipes.data.entailment import LABELS, Pair


@dataclass(frozen=True)
class Family:
    """Senses, each with the words that have it, and a word for any of them."""

    general: str
    senses: tuple[tuple[str, ...], ...]

    def follows(self, word: str, chance: random.Random) -> str:
        """A word that is true wherever this one is."""
        if word == self.general:
            return word
        return chance.choice([*self._sense(word), self.general])

    def excludes(self, word: str, chance: random.Random) -> str:
        """A word that is never true where this one, not the general one, is."""
        return chance.choice([other for sense in self.senses if word not in sense for other in sense])

    def special(self, chance: random.Random) -> str:
        """A word of any sense."""
        return chance.choice(chance.choice(self.senses))

    def _sense(self, word: str) -> tuple[str, ...]:
        return next(sense for sense in self.senses if word in sense)


def _family(general: str, *senses: str) -> Family:
    return Family(general, tuple(tuple(sense.split()) for sense in senses))


LEXICON = (
    _family("animal", "dog hound", "cat kitten", "horse pony"),
    _family("person", "man gentleman", "woman lady", "child kid"),
    _family("vehicle", "car automobile", "ship boat", "plane aircraft"),
    _family("place", "forest wood", "town city", "shore beach"),
    _family("size", "big large", "small little"),
    _family("temperature", "hot warm", "cold chilly"),
    _family("pace", "fast quick", "slow sluggish"),
    _family("mood", "happy glad", "sad unhappy"),
    _family("noise", "loud noisy", "quiet silent"),
    _family("age", "old aged", "young youthful"),
    _family("price", "cheap inexpensive", "dear costly"),
    _family("light", "bright sunny", "dark gloomy"),
    _family("moving", "running sprinting", "walking strolling", "jumping leaping"),
    _family("speaking", "shouting yelling", "whispering murmuring"),
    _family("consuming", "eating dining", "drinking sipping"),
    _family("time", "morning dawn", "evening dusk"),
)


def generate(count: int, seed: int, longest: int) -> list[Pair]:
    """Pairs with known answers and alignments, as many of each label as of the others.

    Args:
        count: number of pairs.
        seed: of the random numbers.
        longest: number of words of the longest premise, at least 4 and less than the number of families.

    Examples:
        >>> from structmax.recipes.data.word_families import generate
        >>> pair = generate(3, seed=0, longest=4)[2]
        >>> " ".join(pair.premise), " ".join(pair.hypothesis), pair.label, pair.origins
        ('boat warm noisy mood', 'automobile hot noisy mood', 2, (0, 1, 2, 3))
    """
    chance = random.Random(seed)
    return [_pair(place % len(LABELS), longest, chance) for place in range(count)]


def _pair(label: int, longest: int, chance: random.Random) -> Pair:
    families = chance.sample(LEXICON, chance.randint(4, longest))
    # one premise in four speaks generally about one thing
    general = chance.randrange(4 * len(families))
    premise = [f.general if place == general else f.special(chance) for place, f in enumerate(families)]
    kept = sorted(chance.sample(range(len(families)), chance.randint(3, len(families))))
    # place of the counterpart, or −1 for none, and the word
    said = [(place, families[place].follows(premise[place], chance)) for place in kept]
    if LABELS[label] == "contradiction":
        change = chance.choice([here for here, place in enumerate(kept) if place != general])
        place = kept[change]
        said[change] = place, families[place].excludes(premise[place], chance)
    elif LABELS[label] == "neutral":
        if general in kept:
            said[kept.index(general)] = general, families[general].special(chance)
        else:
            others = [family for family in LEXICON if family not in families]
            said[chance.randrange(len(said))] = -1, chance.choice(others).special(chance)
    # In half of the hypotheses two parts change places, as in "by B was A bitten".
    cut = chance.choice([0, chance.randrange(1, len(said))])
    said = said[cut:] + said[:cut]
    return Pair(tuple(premise), tuple(word for _, word in said), label, tuple(place for place, _ in said))
