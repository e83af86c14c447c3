"""What asking a server will cost: an estimate before anything is sent, and a limit above which nothing is."""

import json
import math
from dataclasses import dataclass
from typing import Any

from observer_core.errors import InputError

BYTES_PER_TOKEN = 3.5
"""UTF-8 bytes of a token: traces have 3.2 to 4.5 (5th and 95th percentile of the real ones we know), so this is rather
too dear than too cheap."""

USD_PER_MILLION_TOKENS = {"jev": 0.042, "typesafe/jev": 0.042}
"""Model name's beginning → price of a million input tokens (the vendor's list; answers are free)."""

MAX_USD = 1.0
MAX_REQUESTS_WITHOUT_PRICE = 10_000
"""What a batch may come to before somebody has to agree."""


def estimate_tokens(body: Any) -> int:
    """About how many tokens a text or JSON value is."""
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return math.ceil(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class Cost:
    """The estimate for a batch: `requests` to be sent, `cached` ones answered already, input tokens, US dollars.

    `usd` is `None` for a model without a price in the list.
    """

    model: str
    requests: int
    cached: int
    tokens: int
    usd: float | None

    @classmethod
    def of(cls, model: str, *, requests: int, cached: int, tokens: int) -> "Cost":
        price = next((usd for name, usd in USD_PER_MILLION_TOKENS.items() if model.startswith(name)), None)
        return cls(model, requests, cached, tokens, None if price is None else tokens * price / 1e6)

    def __str__(self) -> str:
        price = "no price is known for it" if self.usd is None else f"about USD {self.usd:.4f}"
        known = f" ({self.cached:,} more are cached)" if self.cached else ""
        return f"{self.model}: {self.requests:,} requests{known}, about {self.tokens:,} tokens, {price} (an estimate)"

    def check(self, max_usd: float = MAX_USD) -> None:
        """Refuse a batch that costs more.

        Raises:
            InputError: the estimate is above `max_usd`, or without a price there are more than 10,000 requests.
        """
        if self.usd is None:
            if self.requests > MAX_REQUESTS_WITHOUT_PRICE:
                raise InputError(f"{self}; more than {MAX_REQUESTS_WITHOUT_PRICE:,} requests need your agreement")
        elif self.usd > max_usd:
            raise InputError(f"{self}; more than USD {max_usd:g} needs your agreement")
