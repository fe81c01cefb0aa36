"""Sentences with known dependency trees, from a small grammar in which the words settle what belongs to what.

    the dog of the girl that barks .        the dog barks        the dog of the girl that sings .     the girl sings
    she sees the dog with the fork .        a tool: she uses it  she sees the dog with the tail .     the dog has it

Only `with the telescope`, or another thing of EITHER, belongs to the verb or to its object by the toss of a coin, and
no parser can know. In `a girl arrives that sings` the arc from girl to sings crosses that from the root to arrives.
"""

import random
from collections.abc import Iterable

from structmax.recipes.data.conllu import Sentence
from structmax.recipes.data.different import different

KINDS = ("person", "animal")
NOUNS = {
    "person": ("girl", "boy", "doctor", "teacher", "farmer", "sailor", "queen", "painter"),
    "animal": ("dog", "cat", "horse", "bird", "goat", "fox", "donkey", "rabbit"),
}
# what only they do, and what only they have
DOES = {
    "person": ("sings", "reads", "laughs", "speaks", "writes", "prays"),
    "animal": ("barks", "grazes", "purrs", "growls", "hibernates", "bites"),
}
HAS = {"person": ("hat", "beard", "coat", "smile"), "animal": ("tail", "collar", "saddle", "fur")}
TOOLS = ("fork", "hammer", "brush", "rope", "camera", "ladder")
EITHER = ("telescope", "lamp", "whistle")
EVENTS = ("storm", "dinner", "concert", "harvest", "parade")
DETERMINERS = ("the", "a", "every", "some")
ADJECTIVES = ("old", "young", "red", "small", "famous", "quiet", "clever")
PRONOUNS = ("she", "he", "it")
ARRIVES = ("arrives", "leaves", "waits", "stays")
SEES = ("sees", "follows", "likes", "paints", "calls", "finds")
THINKS = ("thinks", "says", "knows", "hopes")
ADVERBS = ("slowly", "often", "now", "here", "happily")


class Draft:
    """A sentence as it is written, word after word. Words are known by their places, from 1."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.words: list[str] = []
        self.tags: list[str] = []
        self.heads: list[int] = []
        self.labels: list[str] = []

    def add(self, words: tuple[str, ...], tag: str) -> int:
        """Writes one of the words; what it belongs to is said later."""
        self.words.append(self.chance.choice(words))
        self.tags.append(tag)
        self.heads.append(0)
        self.labels.append("root")
        return len(self.words)

    def hang(self, place: int, head: int, label: str) -> None:
        self.heads[place - 1], self.labels[place - 1] = head, label

    def happens(self, probability: float) -> bool:
        return self.chance.random() < probability

    def noun(self, words: tuple[str, ...]) -> int:
        """A determiner, at times adjectives, and one of the nouns."""
        before = [(self.add(DETERMINERS, "DET"), "det")]
        while self.happens(0.2):
            before.append((self.add(ADJECTIVES, "ADJ"), "amod"))
        noun = self.add(words, "NOUN")
        for place, label in before:
            self.hang(place, noun, label)
        return noun

    def with_case(self, preposition: str, words: tuple[str, ...]) -> int:
        """`with the old fork`: a noun with its preposition."""
        case = self.add((preposition,), "ADP")
        noun = self.noun(words)
        self.hang(case, noun, "case")
        return noun

    def being(self) -> dict[str, int]:
        """`the dog of the girl`: the nouns by their kinds, the first governs the second."""
        first, second = self.chance.sample(KINDS, 2)
        beings = {first: self.noun(NOUNS[first])}
        if self.happens(0.35):
            beings[second] = self.with_case("of", NOUNS[second])
            self.hang(beings[second], beings[first], "nmod")
        return beings

    def more_about(self, beings: dict[str, int]) -> None:
        """A relative clause, another noun or a thing, of one of the nouns: its words tell of which."""
        kind = self.chance.choice(list(beings))
        what = self.chance.random()
        if what < 0.4:
            self.relative_clause(kind, beings[kind])
        elif what < 0.7:
            self.hang(self.with_case("with", HAS[kind]), beings[kind], "nmod")
        else:
            conjunction = self.add(("and",), "CCONJ")
            noun = self.noun(NOUNS[kind])
            self.hang(conjunction, noun, "cc")
            self.hang(noun, beings[kind], "conj")

    def relative_clause(self, kind: str, noun: int) -> None:
        pronoun = self.add(("that",), "PRON")
        verb = self.verb(DOES[kind])
        self.hang(pronoun, verb, "nsubj")
        self.hang(verb, noun, "acl:relcl")

    def verb(self, words: tuple[str, ...]) -> int:
        """A verb, at times with an adverb on one of its sides."""
        adverb = self.add(ADVERBS, "ADV") if self.happens(0.1) else 0
        verb = self.add(words, "VERB")
        adverb = adverb or (self.add(ADVERBS, "ADV") if self.happens(0.1) else 0)
        if adverb:
            self.hang(adverb, verb, "advmod")
        return verb

    def clause(self, depth: int = 0) -> int:
        """A subject and what it does; returns the verb."""
        beings: dict[str, int] = {}
        if self.happens(0.2):
            subject = self.add(PRONOUNS, "PRON")
        else:
            beings = self.being()
            subject = next(iter(beings.values()))
        is_plain = bool(beings) and not self.happens(0.3)
        if beings and not is_plain:
            self.more_about(beings)
        what = self.chance.random()
        if what < 0.3:
            verb = self.verb(ARRIVES)
            if is_plain and not depth and self.happens(0.5):
                kind = self.chance.choice(list(beings))
                self.relative_clause(kind, beings[kind])
        elif what < 0.85 or depth:
            verb = self.verb(SEES)
            self.object_of(verb)
        else:
            verb = self.verb(THINKS)
            mark = self.add(("that",), "SCONJ")
            inner = self.clause(depth + 1)
            self.hang(mark, inner, "mark")
            self.hang(inner, verb, "ccomp")
        self.hang(subject, verb, "nsubj")
        return verb

    def object_of(self, verb: int) -> None:
        beings = self.being()
        noun = next(iter(beings.values()))
        self.hang(noun, verb, "obj")
        what = self.chance.random()
        if what < 0.3:
            self.more_about(beings)
        elif what < 0.55:
            self.hang(self.with_case("with", TOOLS), verb, "obl")
        elif what < 0.65:
            thing = self.with_case("with", EITHER)
            self.hang(thing, *((verb, "obl") if self.happens(0.5) else (noun, "nmod")))
        if self.happens(0.2):
            self.hang(self.with_case("during", EVENTS), verb, "obl")

    def sentence(self) -> Sentence:
        verb = self.clause()
        self.hang(self.add((".",), "PUNCT"), verb, "punct")
        return Sentence(tuple(self.words), tuple(self.tags), tuple(self.heads), tuple(self.labels))


def generate(count: int, seed: int, without: Iterable[Sentence] = ()) -> list[Sentence]:
    """Different random sentences that are not among `without`.

    Args:
        count: how many.
        seed: of the generator.
        without: sentences to leave out, such as those of a test set.

    Examples:
        >>> from structmax.recipes.data import grammar
        >>> (sentence,) = grammar.generate(1, seed=5)
        >>> print(*sentence.words)
        some bird leaves that growls .
        >>> sentence.heads
        (2, 3, 0, 5, 2, 3)
    """
    chance = random.Random(seed)
    return different(lambda: Draft(chance).sentence(), count, lambda sentence: sentence.words, without)
