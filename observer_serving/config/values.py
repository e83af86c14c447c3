"""How settings write sizes, addresses and names, and what every section of them shares."""

import ipaddress
import re
import socket
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_size(value: Any) -> int:
    """Bytes of `64MiB`, `10MB`, `2GiB` or a whole number.

    Raises:
        ValueError: not of that form, not above 0, or beyond what a disk or a memory can hold.
    """
    match = _SIZE.fullmatch(str(value).strip()) if isinstance(value, str | int) else None
    if isinstance(value, bool) or match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{value!r} is not a size; write it as 64MiB, 10MB or a number of bytes")
    size = float(match[1]) * _UNITS[match[2].upper()]
    if not 1 <= size < 1 << 63:
        raise ValueError(f"{value!r} must be above 0 and below {(1 << 33)}GiB")
    return int(size)


def format_size(size: int) -> str:
    """The size in the largest binary unit that gives a whole number; what `parse_size` reads back."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size, return_type=str)]


def _has_a_port(address: str) -> str:
    if split_address(address)[1] > 65535:
        raise ValueError(f"{address}: a port is at most 65535")
    return address


def url_parts(url: str) -> SplitResult:
    """The parts of a URL.

    Raises:
        ValueError: it cannot be read as one, or its port is none.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # read from the text only when it is asked for
    except ValueError as error:
        raise ValueError(f"{url!r} is no URL: {error}") from None
    return parts


Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:]+\]|[^:\[\]]+):\d{1,5}$"), AfterValidator(_has_a_port)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$", max_length=64)]


class Section(BaseModel):
    """A mapping of settings; an unknown key is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def split_address(address: str) -> tuple[str, int]:
    """`host:port` as a pair; an IPv6 host comes in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def leads_to(host: str, listener: str) -> bool:
    """Whether connections to a host, by any of its names and addresses, reach a listener of this machine.

    Args:
        host: as in a URL. A name that nobody can resolve now leads nowhere.
        listener: the host that is listened on.
    """
    own = _addresses(listener)
    everywhere = any(address.is_unspecified for address in own)
    loopback = everywhere or any(address.is_loopback for address in own)
    return any(
        address in own
        or (loopback and (address.is_loopback or address.is_unspecified))  # which as a destination is loopback
        or (everywhere and _is_own(address))
        for address in _addresses(host)
    )


_IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def _addresses(host: str) -> set[_IpAddress]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    return {ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found}


def _is_own(address: _IpAddress) -> bool:
    """Whether an interface of this machine has the address: who goes there comes from there. (Sends nothing.)"""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return ipaddress.ip_address(str(probe.getsockname()[0])) == address
    except OSError:  # no way there
        return False


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address."""
    host, _ = split_address(address)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
