"""Checkpoints and their bases by name: a folder, or a hub id that is downloaded once (`owner/name@revision`)."""

import re
from collections.abc import Sequence
from pathlib import Path

from observer_core.errors import InputError, one_line

HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(@(?P<revision>[\w./-]+))?")


def is_hub_id(name: str) -> bool:
    """Whether a name can be a hub id rather than a folder here."""
    return HUB_ID.fullmatch(name) is not None and not Path(name).is_dir()


def fetch(name: str, patterns: Sequence[str]) -> Path:
    """The folder of a hub id, from the local cache or downloaded.

    Args:
        name: `owner/name`, or `owner/name@revision` (a branch, tag or commit).
        patterns: the files wanted; nothing else is downloaded.

    Raises:
        InputError: it cannot be reached, or does not exist.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    found = HUB_ID.fullmatch(name)
    if found is None:
        raise InputError(f"no folder '{name}', and it is not a hub id (owner/name or owner/name@revision)")
    try:
        return Path(snapshot_download(found["repo"], revision=found["revision"], allow_patterns=list(patterns)))
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, HFValidationError, OSError) as error:
        raise InputError(
            f"cannot get {name} from the model hub ({type(error).__name__}: {one_line(error)}); connect "
            "to it, or give a folder"
        ) from error
