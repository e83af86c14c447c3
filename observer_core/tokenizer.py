"""A model's tokenizer, read with the `tokenizers` library alone: counts and cuts text without torch."""

import json
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from observer_core.errors import InputError

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHARS_PER_TOKEN = 16
"""A text of more characters than this for each token of room counts as too long before it is tokenised: reading a
megabyte to learn that it is one would cost more than the model. English has 4 to 5 characters a token."""


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder, with the padding and truncation its makers set switched off.

    Raises:
        InputError: `tokenizer.json` is missing or broken.
    """
    file = folder / TOKENIZER_FILE
    if not file.is_file():
        raise InputError(f"{file} is missing; copy the run again or train anew")
    return _read(file, file.stat().st_mtime_ns)


@lru_cache(maxsize=1)  # a model and its states read the same one, one after the other; nobody changes it
def _read(file: Path, _changed_ns: int) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise InputError(f"{file} is not a tokenizer ({error}); copy the run again or train anew") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def special_names(folder: Path) -> dict[str, str]:
    """The names of the structural tokens: `tokenizer_config.json`, else `special_tokens_map.json`, else BERT's.

    Raises:
        InputError: a file is not a JSON object, or names a token with something that is no name.
    """
    names = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "pad": "[PAD]"}
    for file in (folder / "special_tokens_map.json", folder / TOKENIZER_CONFIG):
        try:
            body = json.loads(file.read_bytes()) if file.is_file() else {}
        except ValueError as error:
            raise InputError(f"{file} is not JSON ({error}); copy the run again or train anew") from error
        if not isinstance(body, dict):
            raise InputError(f"{file} is not a JSON object; copy the run again or train anew")
        for role in names:
            value = body.get(f"{role}_token")
            value = value.get("content") if isinstance(value, dict) else value
            if value is not None and not (isinstance(value, str) and value):
                raise InputError(f"{file}: field '{role}_token' is no token; copy the run again or train anew")
            names[role] = value or names[role]
    return names


def forbidden_names(tokenizer: Tokenizer, names: dict[str, str]) -> list[str]:
    """What text from outside must not contain: the names of all special tokens, the longest first."""
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    return sorted(special | set(names.values()), key=lambda name: (-len(name), name))


class TextTokens:
    """Counts text in a model's tokens, and cuts it to a number of them.

    Args:
        folder: holds `tokenizer.json`, and the names of special tokens beside it.

    Raises:
        InputError: a file is missing or broken.
    """

    def __init__(self, folder: Path) -> None:
        self._tokenizer = load_tokenizer(folder)
        self._forbidden = forbidden_names(self._tokenizer, special_names(folder))

    def clean(self, text: str) -> str:
        """The text with a blank for each name of a special token, which no text may forge."""
        for name in self._forbidden:
            text = text.replace(name, " ")
        return text

    def count(self, text: str) -> int:
        """Its tokens, without those a model puts around a text."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def fits(self, text: str, room: int) -> bool:
        """Whether it has at most `room` tokens; long texts are not read (`CHARS_PER_TOKEN`)."""
        return len(text) <= CHARS_PER_TOKEN * max(room, 0) and self.count(text) <= room

    def start(self, text: str, room: int) -> str:
        """As much of its beginning as `room` tokens hold."""
        return self._part(text[: CHARS_PER_TOKEN * max(room, 0)], room, first=True)

    def end(self, text: str, room: int) -> str:
        """As much of its end as `room` tokens hold."""
        return self._part(text[max(0, len(text) - CHARS_PER_TOKEN * max(room, 0)) :], room, first=False)

    def _part(self, text: str, room: int, *, first: bool) -> str:
        # A part may have more tokens than it had within the whole: cut again until it has not.
        take = room
        while take > 0:
            offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
            if len(offsets) <= room:
                return text
            text = text[: offsets[take - 1][1]] if first else text[offsets[len(offsets) - take][0] :]
            take -= 1
        return ""
