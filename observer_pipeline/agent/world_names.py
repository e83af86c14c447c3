"""Names of the generated world: invented, unlimited, and never the same stem twice in one world."""

import random
import re
from collections.abc import Set
from dataclasses import dataclass


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ONSETS = _words("b br d dr f fl g gr h j k kl kr l m n p pr r s sk st t tr v w z th")
_VOWELS = "aeiou"
_MIDDLES = _words("b d f g k l ld lm ln lv m mb n nd nk nn p r rd rl rm rn rv s sk ss st t th tr v z br dr gr")
_CODAS = _words("l ld lm m n nd ng r rd rk rn s sk st t th x")
_EXTRA = [m + v for m in _MIDDLES for v in _VOWELS]
_STEMS = len(_ONSETS) * len(_VOWELS) * len(_MIDDLES) * len(_VOWELS) * len(_CODAS)
_TRIES = 40
_HALF_BITS = 10
"""Half the bits of the numbers that are mixed; together they reach beyond the number of stems."""

FIRST_NAMES = tuple(
    a + b
    for a in _words("Al Be Ca De Ed Fe Gre He Is Jo Ka Le Ma No Ol Pe Ru Si Ta Vi")
    for b in ("dan", "rin", "la", "mon", "via", "sper", "nna", "tol")
)

_ADJECTIVES = _words(
    "Glass Silent Amber Hollow Distant Burning Winter Crooked Golden Paper Salt Second Iron Borrowed Quiet Last"
)
_NOUNS = _words(
    "Orchard Gate Harbour Letters Bridge Mirror Garden Clock Road Island Lantern Crossing Shadow Field Season Wall"
)

# Each kind's name patterns: two names with one stem and different patterns are near-duplicates.
_PATTERNS: dict[str, tuple[str, ...]] = {
    "person": ("{first} {stem}",),
    "town": ("{stem}holm", "{stem}burg", "{stem}ford", "{stem}mere", "{stem} Heath", "Upper {stem}", "{stem} Cross"),
    "river": ("{stem}", "Little {stem}", "{stem}ava", "Black {stem}"),
    "company": ("{stem} Works", "{stem} & Sons", "{stem} Brothers", "{stem} Trading Company", "{stem} Group"),
    "university": ("University of {stem}", "{stem} Institute", "{stem} College", "{stem} Technical University"),
    "film": (
        "The {adj} {noun} of {stem}",
        "{stem}'s {noun}",
        "A {noun} for {stem}",
        "{stem} and the {adj} {noun}",
        "The {stem} {noun}",
    ),
    "novel": (
        "The {noun} of {stem}",
        "{stem}'s {adj} {noun}",
        "A {adj} {noun} in {stem}",
        "The {adj} {stem}",
        "{stem} at the {noun}",
    ),
    "building": ("{stem} Hall", "{stem} Tower", "{stem} Museum", "{stem} Library", "{stem} Theatre", "{stem} Station"),
}


def stem(index: int) -> str:
    """The stem with this index; different indices give different stems, however many are asked for."""
    extra, within = divmod(index, _STEMS)
    number = _mixed(within)
    parts = []
    for choices in (_ONSETS, _VOWELS, _MIDDLES, _VOWELS, _CODAS):
        number, place = divmod(number, len(choices))
        parts.append(choices[place])
    # Consonants and vowels alternate, so different parts cannot make the same word; more stems take more syllables.
    while extra:
        extra, place = divmod(extra - 1, len(_EXTRA))
        parts.insert(2, _EXTRA[place])
    return "".join(parts).capitalize()


def _mixed(number: int) -> int:
    """A permutation of the numbers below `_STEMS` without any pattern.

    A question's names have indices in the order in which they are made, what it asks for first. A regular walk over
    the stems would give the first of them other letters than the last, and so tell right answers from wrong ones.
    A Feistel network over the next power of four, walked until it comes back inside (Black and Rogaway 2002).
    """
    mask = (1 << _HALF_BITS) - 1
    while True:
        left, right = number >> _HALF_BITS, number & mask
        for key in (0x9E37, 0x79B9, 0x7F4A, 0x7C15):
            left, right = right, left ^ ((right * 0x5BD1 + key) * 0xE995 >> 9 & mask)
        number = left << _HALF_BITS | right
        if number < _STEMS:
            return number


@dataclass(slots=True)
class Namer:
    """Hands out names: every `fresh` stem is used once; `like` makes a near-duplicate with the stem of another name."""

    rng: random.Random
    next_index: int

    def fresh(self, kind: str) -> tuple[str, str]:
        """A name of this kind and its stem."""
        made = self.word()
        return self.pattern(kind, made, avoid=frozenset()), made

    def word(self) -> str:
        """A stem never used before."""
        made = stem(self.next_index)
        self.next_index += 1
        return made

    def pattern(self, kind: str, made: str, avoid: Set[str]) -> str:
        """A name of this kind from the stem, unlike those in `avoid` as long as there is one."""
        for _ in range(_TRIES):
            pattern = self.rng.choice(_PATTERNS[kind])
            first, adj, noun = (self.rng.choice(words) for words in (FIRST_NAMES, _ADJECTIVES, _NOUNS))
            name = with_articles(pattern.format(stem=made, first=first, adj=adj, noun=noun))
            if name not in avoid:
                break
        return name


def with_articles(text: str) -> str:
    """Mend the indefinite article before a vowel."""
    return re.sub(r"\b([Aa]) (?=[aeioAEIOU])", r"\1n ", text)
