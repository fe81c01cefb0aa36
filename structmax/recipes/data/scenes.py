"""Generated English: sentences with their syntax, and the semantic graph that the syntax decides.

    the dogs near the cat that the girls see want to sleep well

Relative clauses agree in number with their noun, which tells what they belong to where two nouns come before them.
Graphs say who does what: a verb's agent is its subject, or that of the verb it hangs on ("want to sleep", "sleep and
eat"), or its object ("tell the cat to sleep"), or the noun of its relative clause. So many of their arcs are not in the
tree, but one or two steps away in it. Determiners and other small words are not in the graph.
"""

import random
from collections.abc import Callable, Collection

from structmax.recipes.data.conllu import Sentence
from structmax.training.errors import RunError

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
ROOT = 0


class _Writer:
    """A sentence on the way, word by word."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.words: list[str] = []
        self.tags: list[str] = []
        self.heads: list[int] = []
        self.labels: list[str] = []
        self.graph: list[list[tuple[int, str]]] = []

    def put(self, word: str, tag: str, head: int = ROOT, label: str = "root") -> int:
        """Its place, from 1; the head may be said later."""
        self.words.append(word)
        self.tags.append(tag)
        self.heads.append(head)
        self.labels.append(label)
        self.graph.append([])
        return len(self.words)

    def hang(self, place: int, head: int, label: str) -> None:
        self.heads[place - 1], self.labels[place - 1] = head, label

    def mean(self, head: int, place: int, label: str) -> None:
        self.graph[place - 1].append((head, label))

    def simple_noun(self, plural: bool) -> int:
        """A determiner, perhaps an adjective, and a noun, which has no head yet."""
        determiner = self.put("the", "DET")
        adjective = self.put(self.chance.choice(ADJECTIVES), "ADJ") if self.chance.random() < 0.3 else None
        noun = self.put(self.chance.choice(NOUNS) + "s" * plural, "NOUN")
        self.hang(determiner, noun, "det")
        if adjective is not None:
            self.hang(adjective, noun, "amod")
            self.mean(noun, adjective, "quality")
        return noun

    def noun(self, plural: bool) -> int:
        """With another one near it, and a relative clause of one of them, or with neither."""
        noun = belongs = self.simple_noun(plural)
        agrees = plural
        if self.chance.random() < 0.3:
            near = self.put("near", "ADP")
            other_plural = self.chance.random() < 0.5
            other = self.simple_noun(other_plural)
            self.hang(near, other, "case")
            self.hang(other, noun, "nmod")
            self.mean(noun, other, "place")
            # a clause of the first of two nouns is told by its number
            if other_plural == plural or self.chance.random() < 0.5:
                belongs, agrees = other, other_plural
        if self.chance.random() < 0.35:
            self.relative_clause(belongs, agrees)
        return noun

    def relative_clause(self, noun: int, plural: bool) -> None:
        kind = self.chance.choice(("rests", "acts", "wants", "acted upon"))
        if kind == "acted upon":
            that = self.put("that", "PRON")
            agent_plural = not plural
            agent = self.simple_noun(agent_plural)
            verb = self.finite(ACTS, agent_plural, noun, "acl")
            self.hang(that, verb, "obj")
            self.hang(agent, verb, "nsubj")
            self.mean(verb, agent, "agent")
            self.mean(verb, noun, "patient")
            return
        who = self.put("who", "PRON")
        verb = self.finite({"rests": RESTS, "acts": ACTS, "wants": WANTS}[kind], plural, noun, "acl")
        self.hang(who, verb, "nsubj")
        self.mean(verb, noun, "agent")
        if kind == "acts":
            self.object(verb, self.simple_noun(self.chance.random() < 0.5))
        if kind == "wants":
            self.infinitive(RESTS, verb, "xcomp", noun)

    def finite(self, verbs: tuple[str, ...], plural: bool, head: int, label: str) -> int:
        return self.put(self.chance.choice(verbs) + "s" * (not plural), "VERB", head, label)

    def infinitive(self, verbs: tuple[str, ...], head: int, label: str, agent: int) -> int:
        to = self.put("to", "PART")
        verb = self.put(self.chance.choice(verbs), "VERB", head, label)
        self.hang(to, verb, "mark")
        self.mean(head, verb, "next" if label == "conj" else "content")
        self.mean(verb, agent, "agent")
        return verb

    def object(self, verb: int, noun: int) -> None:
        self.hang(noun, verb, "obj")
        self.mean(verb, noun, "patient")

    def adverb(self, verb: int) -> None:
        place = self.put(self.chance.choice(self.chance.choice((GOOD, BAD))), "ADV", verb, "advmod")
        self.mean(verb, place, "manner")

    def rest(self, verb: int, kind: tuple[str, ...], agent: int, depth: int) -> None:
        """What comes after a verb of a main clause."""
        if kind in (ACTS, TELLS):
            noun = self.noun(self.chance.random() < 0.5)
            self.object(verb, noun)
            agent = noun if kind is TELLS else agent
        if self.chance.random() < 0.5:
            self.adverb(verb)
        if kind not in (WANTS, TELLS):
            return
        last = self.kind(depth + 1)
        infinitive = self.infinitive(last, verb, "xcomp", agent)
        self.rest(infinitive, last, agent, depth + 1)
        if last in (RESTS, ACTS) and self.chance.random() < 0.3:
            also = self.put("and", "CCONJ")
            second = self.infinitive(RESTS, infinitive, "conj", agent)
            self.hang(also, second, "cc")

    def kind(self, depth: int) -> tuple[str, ...]:
        return self.chance.choice((RESTS, ACTS, WANTS, TELLS) if depth < 2 else (RESTS, ACTS))

    def sentence(self) -> Sentence:
        plural = self.chance.random() < 0.5
        subject = self.noun(plural)
        kind = self.kind(0)
        verb = self.finite(kind, plural, ROOT, "root")
        self.hang(subject, verb, "nsubj")
        self.mean(ROOT, verb, "top")
        self.mean(verb, subject, "agent")
        self.rest(verb, kind, subject, 0)
        if self.chance.random() < 0.3:
            also = self.put("and", "CCONJ")
            second = self.finite(RESTS, plural, verb, "conj")
            self.hang(also, second, "cc")
            self.mean(verb, second, "next")
            self.mean(second, subject, "agent")
            self.adverb(second)
        graph = tuple(tuple(arcs) for arcs in self.graph)
        return Sentence(tuple(self.words), tuple(self.tags), tuple(self.heads), tuple(self.labels), graph)


def generate(
    count: int,
    seed: int,
    without: Collection[Sentence] = (),
    is_fitting: Callable[[Sentence], bool] | None = None,
    longest: int = 24,
) -> list[Sentence]:
    """So many different sentences.

    Args:
        count: how many.
        seed: the same sentences for the same seed.
        without: sentences that should not be among them.
        is_fitting: which sentences to take; by default all.
        longest: number of words.

    Examples:
        >>> from structmax.recipes.data import scenes
        >>> sentence = scenes.generate(8, seed=0)[1]
        >>> print(" ".join(sentence.words))
        >>> sentence.heads
        >>> sentence.graph[sentence.words.index("the")]
        ()
    """
    chance, known = random.Random(seed), {sentence.words for sentence in without}
    found: list[Sentence] = []
    for _ in range(100 * count):
        if len(found) == count:
            break
        sentence = _Writer(chance).sentence()
        fits = len(sentence) <= longest and (is_fitting is None or is_fitting(sentence))
        if fits and sentence.words not in known:
            known.add(sentence.words)
            found.append(sentence)
    if len(found) < count:
        raise RunError(
            f"There should be {count} different sentences of at most {longest} words, but only {len(found)} were found."
        )
    return found


def is_good(sentence: Sentence) -> bool | None:
    """Whether the main verb is done well, by its adverb; None without one."""
    main = sentence.heads.index(ROOT) + 1
    told = [word for word, head, tag in zip(sentence.words, sentence.heads, sentence.tags, strict=True)
            if head == main and tag == "ADV"]  # fmt: skip
    return told[0] in GOOD if told else None
