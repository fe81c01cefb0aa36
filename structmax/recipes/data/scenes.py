"""Generated English: sentences with their syntax, and the semantic graph that the syntax decides.

    the dogs near the cat that the girls see want to sleep well

Relative clauses agree in number with their noun, which tells what they belong to where two nouns come before them.
Graphs say who does what: a verb's agent is its subject, or that of the verb it hangs on ("want to sleep", "sleep and
eat"), or its object ("tell the cat to sleep"), or the noun of its relative clause. So many of their arcs are not in the
tree, but one or two steps away in it. Determiners and other small words are not in the graph.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable

from structmax.recipes.data.conllu import Sentence
from structmax.recipes.data.different import different
from structmax.recipes.data.grammar import Draft

NOUNS = (
    "dog", "cat", "girl", "boy", "king", "queen", "teacher", "doctor", "nurse", "horse", "bird", "farmer", "baker",
    "singer", "guard", "uncle", "sister", "cousin", "robot", "tiger",
)  # fmt: skip
ADJECTIVES = ("big", "small", "old", "young", "happy", "sad", "brave", "shy", "tall", "quick")
# verbs without an object, with one, that leave a subject to an infinitive, and that leave their object to one
RESTS = ("sleep", "eat", "bark", "sing", "walk", "jump", "wait", "smile", "work", "swim")
ACTS = ("see", "hear", "love", "help", "meet", "paint", "thank", "call", "know", "visit")
WANTS = ("want", "hope", "need", "plan", "refuse", "agree")
TELLS = ("tell", "ask", "order", "allow", "invite", "remind")
GOOD = ("well", "nicely", "kindly", "gladly")
BAD = ("badly", "rudely", "poorly", "unkindly")
ROOT, LONGEST = 0, 24


class Scene(Draft):
    """A sentence as it is written, with what it means."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        # of each word, from 1, those it is an argument of
        self.meaning: dict[int, list[tuple[int, str]]] = defaultdict(list)

    def put(self, words: tuple[str, ...], tag: str, head: int, label: str) -> int:
        """One of the words below a head that is known; returns its place."""
        place = self.add(words, tag)
        self.hang(place, head, label)
        return place

    def mean(self, head: int, place: int, label: str) -> None:
        self.meaning[place].append((head, label))

    def simple_noun(self, plural: bool) -> int:
        """A determiner, perhaps an adjective, and a noun, which has no head yet."""
        determiner = self.add(("the",), "DET")
        adjective = self.add(ADJECTIVES, "ADJ") if self.happens(0.3) else 0
        noun = self.add(tuple(noun + "s" * plural for noun in NOUNS), "NOUN")
        self.hang(determiner, noun, "det")
        if adjective:
            self.hang(adjective, noun, "amod")
            self.mean(noun, adjective, "quality")
        return noun

    def whole_noun(self, plural: bool) -> int:
        """With another one near it, and a relative clause of one of them, or with neither."""
        noun = belongs = self.simple_noun(plural)
        agrees = plural
        if self.happens(0.3):
            near = self.add(("near",), "ADP")
            other_plural = self.happens(0.5)
            other = self.simple_noun(other_plural)
            self.hang(near, other, "case")
            self.hang(other, noun, "nmod")
            self.mean(noun, other, "place")
            # a clause of the first of two nouns is told by its number
            if other_plural == plural or self.happens(0.5):
                belongs, agrees = other, other_plural
        if self.happens(0.35):
            self.clause_of(belongs, agrees)
        return noun

    def clause_of(self, noun: int, plural: bool) -> None:
        kind = self.chance.choice(("rests", "acts", "wants", "acted upon"))
        if kind == "acted upon":
            that = self.add(("that",), "PRON")
            agent_plural = not plural
            agent = self.simple_noun(agent_plural)
            verb = self.finite(ACTS, agent_plural, noun, "acl")
            self.hang(that, verb, "obj")
            self.hang(agent, verb, "nsubj")
            self.mean(verb, agent, "agent")
            self.mean(verb, noun, "patient")
            return
        who = self.add(("who",), "PRON")
        verb = self.finite({"rests": RESTS, "acts": ACTS, "wants": WANTS}[kind], plural, noun, "acl")
        self.hang(who, verb, "nsubj")
        self.mean(verb, noun, "agent")
        if kind == "acts":
            self.acted_upon(verb, self.simple_noun(self.happens(0.5)))
        if kind == "wants":
            self.infinitive(RESTS, verb, "xcomp", noun)

    def finite(self, verbs: tuple[str, ...], plural: bool, head: int, label: str) -> int:
        return self.put(tuple(verb + "s" * (not plural) for verb in verbs), "VERB", head, label)

    def infinitive(self, verbs: tuple[str, ...], head: int, label: str, agent: int) -> int:
        to = self.add(("to",), "PART")
        verb = self.put(verbs, "VERB", head, label)
        self.hang(to, verb, "mark")
        self.mean(head, verb, "next" if label == "conj" else "content")
        self.mean(verb, agent, "agent")
        return verb

    def acted_upon(self, verb: int, noun: int) -> None:
        self.hang(noun, verb, "obj")
        self.mean(verb, noun, "patient")

    def adverb(self, verb: int) -> None:
        place = self.put(GOOD + BAD, "ADV", verb, "advmod")
        self.mean(verb, place, "manner")

    def rest(self, verb: int, kind: tuple[str, ...], agent: int, depth: int) -> None:
        """What comes after a verb of a main clause."""
        if kind in (ACTS, TELLS):
            noun = self.whole_noun(self.happens(0.5))
            self.acted_upon(verb, noun)
            agent = noun if kind is TELLS else agent
        if self.happens(0.5):
            self.adverb(verb)
        if kind not in (WANTS, TELLS):
            return
        last = self.kind(depth + 1)
        infinitive = self.infinitive(last, verb, "xcomp", agent)
        self.rest(infinitive, last, agent, depth + 1)
        if last in (RESTS, ACTS) and self.happens(0.3):
            also = self.add(("and",), "CCONJ")
            second = self.infinitive(RESTS, infinitive, "conj", agent)
            self.hang(also, second, "cc")

    def kind(self, depth: int) -> tuple[str, ...]:
        return self.chance.choice((RESTS, ACTS, WANTS, TELLS) if depth < 2 else (RESTS, ACTS))

    def sentence(self) -> Sentence:
        plural = self.happens(0.5)
        subject = self.whole_noun(plural)
        kind = self.kind(0)
        verb = self.finite(kind, plural, ROOT, "root")
        self.hang(subject, verb, "nsubj")
        self.mean(ROOT, verb, "top")
        self.mean(verb, subject, "agent")
        self.rest(verb, kind, subject, 0)
        if self.happens(0.3):
            also = self.add(("and",), "CCONJ")
            second = self.finite(RESTS, plural, verb, "conj")
            self.hang(also, second, "cc")
            self.mean(verb, second, "next")
            self.mean(second, subject, "agent")
            self.adverb(second)
        graph = tuple(tuple(self.meaning[place]) for place in range(1, len(self.words) + 1))
        return Sentence(tuple(self.words), tuple(self.tags), tuple(self.heads), tuple(self.labels), graph)


def generate(
    count: int, seed: int, without: Iterable[Sentence] = (), is_fitting: Callable[[Sentence], bool] = bool
) -> list[Sentence]:
    """Different random sentences of at most `LONGEST` words that are not among `without`.

    Args:
        count: how many.
        seed: of the generator.
        without: sentences to leave out, such as those of a test set.
        is_fitting: which sentences to take; by default all.

    Examples:
        >>> from structmax.recipes.data import scenes
        >>> (sentence,) = scenes.generate(1, seed=3)
        >>> print(*sentence.words)
        the tigers smile gladly and work unkindly
        >>> sentence.heads
        (2, 3, 0, 3, 6, 3, 6)
        >>> sentence.graph[1]
        ((3, 'agent'), (6, 'agent'))
    """
    chance = random.Random(seed)

    def draw() -> Sentence | None:
        sentence = Scene(chance).sentence()
        return sentence if len(sentence) <= LONGEST and is_fitting(sentence) else None

    return different(draw, count, lambda sentence: sentence.words, without)


def is_good(sentence: Sentence) -> bool | None:
    """Whether what the main verb says is done well, by its adverb; None without one."""
    main = sentence.heads.index(ROOT) + 1
    told = (word for word, head in zip(sentence.words, sentence.heads, strict=True) if head == main)
    return next((word in GOOD for word in told if word in GOOD + BAD), None)
