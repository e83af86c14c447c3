"""Who may do what: keys for sending traces, for reading, and for administering, as `Authorization: Bearer <key>`."""

import hmac
from typing import Literal

from observer_serving.config import Settings
from observer_serving.receive.status import DENIED, UNAUTHENTICATED, RefusedError

Role = Literal["ingest", "read", "admin"]
_BEARER = b"bearer "


class Keys:
    """The keys of a service. Without any, everything passes: the service then listens on loopback only.

    `api_key` and the keys for `admin` may do everything. A role that no key is for is open to those alone.
    """

    def __init__(self, settings: Settings) -> None:
        self._granted: list[tuple[bytes, frozenset[Role]]] = []
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Take the keys of these settings from the next request on."""
        every: frozenset[Role] = frozenset(("ingest", "read", "admin"))
        granted: list[tuple[bytes, frozenset[Role]]] = []
        if settings.api_key is not None:
            granted.append((settings.api_key.get_secret_value().encode(), every))
        for role in every:
            roles = every if role == "admin" else frozenset((role,))
            granted += [(key.get_secret_value().encode(), roles) for key in getattr(settings.keys, role)]
        self._granted = granted

    @property
    def none(self) -> bool:
        """Whether there are none, and everybody who reaches the service may do everything."""
        return not self._granted

    def check(self, authorization: bytes, role: Role | None) -> None:
        """
        Args:
            role: what is to be done; `None`: whatever the key is for.

        Raises:
            RefusedError: no key, an unknown one, or one that is not for this.
        """
        if not self._granted:
            return
        scheme, given = authorization[: len(_BEARER)], authorization[len(_BEARER) :]
        if scheme.lower() != _BEARER:  # RFC 9110: schemes are case-insensitive
            given = b""
        # Every key is compared, each in constant time: the answer's time tells nothing.
        matching = [roles for key, roles in self._granted if hmac.compare_digest(given, key)]
        if not matching:
            raise RefusedError(UNAUTHENTICATED, "send 'Authorization: Bearer <api_key>'")
        if role is not None and not any(role in roles for roles in matching):
            raise RefusedError(DENIED, f"this key is not for this; use one of keys.{role}")
