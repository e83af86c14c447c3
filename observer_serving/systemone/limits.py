"""What one request may cost, and how much may wait."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server; what exceeds one is answered with the error in brackets.

    Args:
        batch_tokens: tokens the model computes in one go. More fills a GPU; on a CPU it only lets all of a batch wait
            for its last. A request above it is a batch of its own.
        request_tokens: tokens the model may have to compute for one request, so that none holds it for minutes (413).
        questions: of one request (422).
        body: bytes of a request after decompression (413).
        waiting: requests taken in and not answered yet (503 with `Retry-After`).
        read: seconds a client has to send its body (408).
        deadline: seconds from the body to the answer (503 with `Retry-After`).
        drain: seconds that requests taken in before a shutdown have to be answered.
    """

    batch_tokens: int = 4096
    request_tokens: int = 262_144
    questions: int = 1000
    body: int = 2 << 20
    waiting: int = 256
    read: float = 10.0
    deadline: float = 60.0
    drain: float = 60.0

    @property
    def waiting_tokens(self) -> int:
        """Tokens that may wait to be computed or be computed in all (503 with `Retry-After`)."""
        return 4 * self.request_tokens
