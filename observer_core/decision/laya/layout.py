"""The row a Laya model reads, made with the `tokenizers` library alone; training and serving build it here.

One row per question: `[CLS] "<type> question: <instructions>" [SEP] [MASK] option0 [MASK] option1 … [SEP] state [SEP]`.
An option's score is read at its `[MASK]`. Text from the caller can never become one of these structural tokens.

Limits (the released models'): an option has at most 48 tokens; when the options leave fewer than 16 of `head_max_len`
tokens, each option with its `[MASK]` is cut to max(4, (head_max_len − 16) / options); the instructions get what is then
left, at least 8. The state gets the rest of `max_len`.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from observer_core.decision.cut import Cut, cut_state, plain
from observer_core.decision.protocol import ContextOverflowError
from observer_core.errors import InputError
from observer_core.questions import Question, option_names
from observer_core.tokenizer import forbidden_names, load_tokenizer, special_names

TYPE_IDS = {"choice": 0, "score": 1, "noul": 2}
OPTION_TOKENS = 48
MIN_INSTRUCTION_TOKENS = 8
MIN_FREE_TOKENS = 16
MIN_OPTION_TOKENS = 4
KEPT_HEADS = 256

Inputs = dict[str, NDArray[Any]]
"""What the network reads (`collate`)."""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def option_texts(question: Question) -> list[str]:
    """What the model reads for each option."""
    names = option_names(question)
    if question.type == "noul":
        criteria = question.criteria if isinstance(question.criteria, Mapping) else {}
        said = [criteria.get(name) for name in names]
        default = ("no, the statement does not hold", "yes, the statement holds")
        return [
            f"{name}: {text if value in (None, '') else _text(value)}"
            for name, text, value in zip(names, default, said, strict=True)
        ]
    if question.type == "choice":
        values = question.criteria.values()
        return [n if v in (None, "") else f"{n}: {_text(v)}" for n, v in zip(names, values, strict=True)]
    return [f"level {level}: {_text(text)}" for level, text in enumerate(question.criteria)]


@dataclass(frozen=True, slots=True)
class Row:
    """One question about one state, as token ids; `markers` are the positions of the options' `[MASK]`s."""

    ids: list[int]
    markers: list[int]
    type_id: int
    truncated: bool
    state_tokens: int


@dataclass(frozen=True, slots=True)
class _Head:
    """The part of a row that comes before the state."""

    ids: list[int]
    markers: list[int]
    type_id: int


class Layout:
    """Builds rows for one checkpoint: its tokenizer, its limits, and how it cuts.

    Args:
        folder: a tokenizer folder (`tokenizer.json`, `tokenizer_config.json`).
        max_len: tokens of a whole row.
        head_max_len: tokens of question and options in it.
        cut: where a state text that does not fit is cut.

    Raises:
        InputError: a tokenizer file is missing or broken.
    """

    def __init__(self, folder: Path, *, max_len: int, head_max_len: int, cut: Cut = "end") -> None:
        self.tokenizer = load_tokenizer(folder)
        self.max_len, self.head_max_len = max_len, head_max_len
        self.cut: Cut = cut
        self._heads: dict[tuple[str, str], _Head] = {}  # questions repeat from trace to trace
        names = special_names(folder)
        self._cls, self._sep, self._mask, self.pad_id = (
            self._structural_id(folder, names[role]) for role in ("cls", "sep", "mask", "pad")
        )
        self._structural = frozenset((self._cls, self._sep, self._mask, self.pad_id))
        if self._mask in (self._cls, self._sep, self.pad_id):
            raise InputError(f"{folder} names {names['mask']} as mask and as another token; copy the run again")
        # Blanks in place of special tokens keep the words around them apart, as the released models do for [MASK].
        self._forged = forbidden_names(self.tokenizer, names)

    def rows(self, state: str, questions: Mapping[str, Question], *, cut: Cut | None = None) -> list[Row]:
        """The rows of one state, one per question, in the order given.

        Args:
            cut: where this state is cut, when not where this layout's states are.

        Raises:
            ContextOverflowError: a question's options do not fit this model's window.
        """
        text = self._clean(state)
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        ids = self._plain(encoding.ids)

        @functools.cache  # a request may have a thousand questions about one long state
        def fitting(room: int) -> list[int]:
            return ids if len(ids) <= room else cut_state(text, encoding, room, cut or self.cut, self._structural)

        heads = [self._head(name, question) for name, question in questions.items()]
        return [self._row(head, fitting(self.max_len - len(head.ids) - 1), len(ids)) for head in heads]

    def state_room(self, questions: Mapping[str, Question]) -> int:
        """The tokens that the longest of the questions leaves for a state.

        Raises:
            ContextOverflowError: a question's options do not fit this model's window.
        """
        return self.max_len - 1 - max(len(self._head(name, question).ids) for name, question in questions.items())

    def _structural_id(self, folder: Path, name: str) -> int:
        number = self.tokenizer.token_to_id(name)
        if number is None:
            raise InputError(f"{folder} has no token {name}; copy the run again or train anew")
        return number

    def _clean(self, text: str) -> str:
        for name in self._forged:
            text = text.replace(name, " ")
        return text

    def _plain(self, ids: Sequence[int]) -> list[int]:
        return plain(ids, self._structural)

    def _encode(self, text: str) -> list[int]:
        return self._plain(self.tokenizer.encode(self._clean(text), add_special_tokens=False).ids)

    def _head(self, name: str, question: Question) -> _Head:
        key = (name, question.model_dump_json())
        if key not in self._heads:
            if len(self._heads) >= KEPT_HEADS:
                self._heads.clear()
            self._heads[key] = self._make_head(name, question)
        return self._heads[key]

    def _make_head(self, name: str, question: Question) -> _Head:
        asked = "" if question.instructions is None else _text(question.instructions)
        instructions = self._encode(f"{question.type} question: {asked}")
        options = [[self._mask, *self._encode(" " + text)[:OPTION_TOKENS]] for text in option_texts(question)]
        left = self.head_max_len - sum(map(len, options))
        if left < MIN_FREE_TOKENS:
            each = max(MIN_OPTION_TOKENS, (self.head_max_len - MIN_FREE_TOKENS) // len(options))
            options = [option[:each] for option in options]
            left = self.head_max_len - sum(map(len, options))
        ids = [self._cls, *instructions[: max(MIN_INSTRUCTION_TOKENS, left)], self._sep]
        markers = []
        for option in options:
            markers.append(len(ids))
            ids += option
        ids.append(self._sep)
        if len(ids) >= self.max_len:
            raise ContextOverflowError(
                f"question '{name}' has {len(options)} options, which take {len(ids)} of this model's {self.max_len} "
                "tokens; ask about fewer options or use a model with a longer window"
            )
        return _Head(ids, markers, TYPE_IDS[question.type])

    def _row(self, head: _Head, state: list[int], whole: int) -> Row:
        ids = [*head.ids, *state, self._sep]
        return Row(ids, head.markers, head.type_id, len(state) < whole, len(state))


def collate(rows: Sequence[Row], pad_id: int) -> Inputs:
    """The model's inputs for some rows, padded to the longest.

    Returns:
        `input_ids`, `attention_mask` int64 (rows, tokens); `marker_pos` int64 and `marker_mask` bool (rows, options);
        `qtype` int64 (rows,).
    """
    length, options = max(len(row.ids) for row in rows), max(len(row.markers) for row in rows)
    batch = {
        "input_ids": np.full((len(rows), length), pad_id, dtype=np.int64),
        "attention_mask": np.zeros((len(rows), length), dtype=np.int64),
        "marker_pos": np.zeros((len(rows), options), dtype=np.int64),
        "marker_mask": np.zeros((len(rows), options), dtype=np.bool_),
        "qtype": np.array([row.type_id for row in rows], dtype=np.int64),
    }
    for i, row in enumerate(rows):
        batch["input_ids"][i, : len(row.ids)] = row.ids
        batch["attention_mask"][i, : len(row.ids)] = 1
        batch["marker_pos"][i, : len(row.markers)] = row.markers
        batch["marker_mask"][i, : len(row.markers)] = True
    return batch
