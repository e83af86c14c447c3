"""Which files may lie in a checkpoint's folder: those of its layout, and what hubs and version control put beside."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from observer_core.errors import InputError

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "chat_template.jinja"),
)
"""What transformers writes for a tokenizer."""
BESIDE = ("README*", "LICENSE*", "LICENCE*", "NOTICE*", ".gitattributes", ".gitignore", ".cache/*", ".git/*")
"""Read by nobody here; `.cache/` is the hub's record of a download."""


def refuse_unknown(folder: Path, layout: Iterable[str]) -> None:
    """Refuse a checkpoint with a file that its layout does not know: nobody could say what it is for.

    Args:
        layout: paths inside the folder, with `*` for any text.

    Raises:
        InputError: there is such a file; names it.
    """
    known = (*layout, *BESIDE)
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if not file.is_dir() and not any(fnmatchcase(name, pattern) for pattern in known):
            raise InputError(f"{file} is no file of this kind of checkpoint; remove it, or copy the checkpoint again")
