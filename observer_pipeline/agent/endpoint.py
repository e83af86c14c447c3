"""Where spans go: the address of an OTLP/HTTP receiver, and whether one answers there."""

import gzip

import httpx

from observer_core.errors import InputError

TRACES_PATH = "/v1/traces"


def traces_url(endpoint: str) -> str:
    """The OTLP/HTTP traces address of an endpoint given with or without its path."""
    base = endpoint.rstrip("/")
    return base if base.endswith(TRACES_PATH) else base + TRACES_PATH


def probe_endpoint(endpoint: str) -> None:
    """Make sure that a receiver answers before work is done for it: it must accept an empty export request.

    Raises:
        InputError: nobody answers, or spans are refused.
    """
    url = traces_url(endpoint)
    try:
        answer = httpx.post(url, content=b"", headers={"content-type": "application/x-protobuf"}, timeout=10)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(f"no OTLP receiver at {url} ({error}); start one or mend the endpoint") from error
    if answer.status_code >= 400:
        raise InputError(f"{url} refuses spans with status {answer.status_code}; mend the endpoint")


def post_spans(endpoint: str, request: bytes) -> int:
    """Send an encoded `ExportTraceServiceRequest`; returns the status.

    Raises:
        httpx.HTTPError: nobody answered.
    """
    headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}
    body = gzip.compress(request, compresslevel=1)
    return httpx.post(traces_url(endpoint), content=body, headers=headers, timeout=60).status_code
