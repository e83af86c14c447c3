"""The errors a user sees: one line that says what was wrong and how to mend it."""


class ObserverError(Exception):
    """A failed run (exit code 1). The message is one line: what went wrong, then the mend."""

    exit_code = 1


class InputError(ObserverError):
    """Bad input or bad settings (exit code 2): the caller can mend it, retrying alone cannot."""

    exit_code = 2


def one_line(error: BaseException) -> str:
    """What an exception of somebody else's says, on one line of at most 200 characters, for a message of ours."""
    return " ".join(str(error).split())[:200]
