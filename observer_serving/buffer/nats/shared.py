"""What all replicas must have in common: the hash key and the epochs of the review budgets."""

import hashlib
import secrets
from typing import Any

import orjson
from nats.errors import Error as NatsError

from observer_serving.buffer.nats.link import LinkError, NatsLink


def shared_hash_key(link: NatsLink) -> bytes:
    """The key of the hash that picks traces; made by whichever replica came first."""
    return link.call(link.shared.once("hash_key", secrets.token_hex(32).encode()))


class SharedEpochs:
    """The epochs of one scope in a key-value bucket: whoever needs an epoch first writes it, all others take it."""

    def __init__(self, link: NatsLink, scope: str) -> None:
        self._link = link
        self._scope = hashlib.sha256(scope.encode()).hexdigest()[:16]

    def last(self) -> dict[str, Any] | None:
        data = self._call(self._link.epochs.get(f"{self._scope}.last"))
        return None if data is None else orjson.loads(data)

    def agree(self, record: dict[str, Any]) -> dict[str, Any]:
        key = f"{self._scope}.{record['policy_version']}.{record['epoch']['number']}"
        data = orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY)
        agreed = self._call(self._link.epochs.once(key, data))
        self._call(self._link.epochs.put(f"{self._scope}.last", agreed))
        return orjson.loads(agreed)

    def _call(self, work: Any) -> Any:
        try:
            return self._link.call(work)
        except (NatsError, TimeoutError) as error:
            raise LinkError(f"cannot agree on an epoch: {str(error) or type(error).__name__}") from None
