"""The tokens a Kev model reads, made with the `tokenizers` library alone; training and serving build them here.

    <state> state            once
    <q> instructions <opt> option0 </opt> <opt> option1 </opt> … <decide>      a branch for each question

A question is read as its branch after the state, as if nothing else had been asked: one causal row, state + branch.
An option's logit is read at its `</opt>` and at the branch's `<decide>`. No text from a caller can become a delimiter.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from observer_core.decision.cut import Cut, cut_state, plain
from observer_core.decision.kev.config import Delimiters
from observer_core.decision.protocol import ContextOverflowError
from observer_core.errors import InputError
from observer_core.questions import Question, option_names
from observer_core.tokenizer import load_tokenizer

SPECIAL_NAME = re.compile(r"<\|([A-Za-z0-9_]+)\|>")
"""How Qwen names its special tokens; in text from outside the bars are broken ones."""
KEPT_BRANCHES = 256


def render(value: Any, depth: int = 0) -> str:
    """The text of a JSON value: `key: value` and `- item` lines, two blanks deeper inside; null is empty."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        lines = []
        for key, inner in value.items():
            nested = isinstance(inner, Mapping | list)
            lines.append(f"{'  ' * depth}{key}:" + (f"\n{render(inner, depth + 1)}" if nested else f" {render(inner)}"))
        return "\n".join(lines)
    if isinstance(value, list):
        return "\n".join(f"{'  ' * depth}- {render(item, depth + 1).lstrip()}" for item in value)
    return str(value)


def option_texts(question: Question) -> list[str]:
    """What the model reads for each option.

    Raises:
        InputError: a choice or score without usable criteria.
    """
    names = option_names(question)
    if question.type == "score":
        return [render(level) for level in question.criteria]
    criteria = question.criteria if isinstance(question.criteria, Mapping) else {}
    shown = ["no", "yes"] if question.type == "noul" else names
    given = [criteria.get(name) for name in names] if question.type == "noul" else list(criteria.values())
    return [
        name if said is None or said == "" else f"{name}: {render(said)}"
        for name, said in zip(shown, given, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class StateTokens:
    """A state as token ids, its delimiter first."""

    ids: tuple[int, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class Branch:
    """One question as token ids.

    Args:
        head: `<q>` and the instructions.
        options: each with its delimiters.
        decide: the id that ends the branch.
        is_choice: whether the options' order is free.
    """

    head: tuple[int, ...]
    options: tuple[tuple[int, ...], ...]
    decide: int
    is_choice: bool

    @property
    def ids(self) -> list[int]:
        return [*self.head, *(i for option in self.options for i in option), self.decide]

    @property
    def ends(self) -> list[int]:
        """The positions of the `</opt>`s in `ids`; `<decide>` is the last position."""
        ends, at = [], len(self.head)
        for option in self.options:
            at += len(option)
            ends.append(at - 1)
        return ends

    def permuted(self, order: Sequence[int]) -> "Branch":
        """With the options in another order: what stands at each place."""
        return replace(self, options=tuple(self.options[i] for i in order))


class Layout:
    """Turns states and questions into tokens for one checkpoint.

    Args:
        folder: holds `tokenizer.json`.
        max_state: tokens of a state, its delimiter included.
        max_branch: tokens of a question with its options.
        cut: where a state that does not fit is cut.

    Raises:
        InputError: the tokenizer is missing or broken, or lacks a delimiter.
    """

    def __init__(
        self, folder: Path, *, delimiters: Delimiters, max_state: int, max_branch: int, cut: Cut = "end"
    ) -> None:
        self.tokenizer = load_tokenizer(folder)
        self.max_state, self.max_branch = max_state, max_branch
        self.cut: Cut = cut
        self._branches: dict[str, Branch] = {}  # questions repeat from trace to trace
        ids = [self._delimiter(folder, name) for name in delimiters]
        self._state, self._question, self._option, self._end, self._decide = ids
        added = self.tokenizer.get_added_tokens_decoder()
        self._structural = frozenset(ids) | {number for number, token in added.items() if token.special}
        names = set(delimiters) | {token.content for token in added.values() if token.special}
        self._forged = re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)))

    def _delimiter(self, folder: Path, name: str) -> int:
        number = self.tokenizer.token_to_id(name)
        if number is None:
            raise InputError(f"{folder / 'tokenizer.json'} has no token {name}; it is not the tokenizer of this model")
        return number

    def state(self, state: Any, *, strict: bool = False) -> StateTokens:
        """The tokens of one state, a text or any JSON value.

        Raises:
            ContextOverflowError: with `strict`, when the state has to be cut.
        """
        text = self._clean(render(state))
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        ids, room = plain(encoding.ids, self._structural), self.max_state - 1
        truncated = len(ids) > room
        if truncated and strict:
            raise ContextOverflowError(
                f"the state has {len(ids) + 1} tokens, this model reads at most {self.max_state}; shorten it"
            )
        if truncated:
            ids = cut_state(text, encoding, room, self.cut, self._structural)
        return StateTokens((self._state, *ids), truncated)

    def branch(self, name: str, question: Question) -> Branch:
        """The tokens of one question; its name is only for the error.

        Raises:
            ContextOverflowError: it is longer than the model's branches may be.
            InputError: the question is not well formed.
        """
        key = question.model_dump_json()
        if key not in self._branches:
            if len(self._branches) >= KEPT_BRANCHES:
                self._branches.clear()
            self._branches[key] = self._make_branch(name, question)
        return self._branches[key]

    def _make_branch(self, name: str, question: Question) -> Branch:
        head = (self._question, *self._encode(render(question.instructions)))
        options = tuple((self._option, *self._encode(text), self._end) for text in option_texts(question))
        branch = Branch(head, options, self._decide, question.type == "choice")
        if len(branch.ids) > self.max_branch:
            raise ContextOverflowError(
                f"question '{name}' has {len(options)} options and {len(branch.ids)} tokens, this model reads at most "
                f"{self.max_branch}; ask about fewer options or shorten them"
            )
        return branch

    def _clean(self, text: str) -> str:
        """With broken bars in, or after the first character of, every name of a special token."""
        text = SPECIAL_NAME.sub(r"<¦\1¦>", text)
        return self._forged.sub(lambda found: f"{found[0][0]}¦{found[0][1:]}", text)

    def _encode(self, text: str) -> list[int]:
        return plain(self.tokenizer.encode(self._clean(text), add_special_tokens=False).ids, self._structural)
