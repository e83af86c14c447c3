"""The observer services models are rolled onto, through their JSON API alone: no shared disk, no MLflow."""

import hashlib
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import httpx

from observer_core.errors import ObserverError
from observer_core.rundir import RunDirectory

_TIMEOUT_S = 30
_SWITCH_TIMEOUT_S = 600  # the service loads the model and replays the golden traces before it answers
_CHUNK = 1 << 20


class ServiceRefused(ObserverError):
    """The service answered and said no: the request, not the connection, is what failed."""


class ServiceResource(dg.ConfigurableResource):
    """JSON API addresses of the services, and the admin key they share."""

    urls: list[str]
    api_key: str | None = None

    def model(self, url: str) -> dict[str, Any]:
        """What `GET /v1/model` says: the model that decides now.

        Raises:
            ObserverError: the service does not answer or refuses.
        """
        return self._send("GET", url, "/v1/model", timeout=_TIMEOUT_S)

    def version(self, url: str) -> str:
        """The `model_version` that decides now.

        Raises:
            ObserverError: the service does not answer or refuses.
        """
        return str(self.model(url)["model_version"])

    def push(self, url: str, run: RunDirectory, *, version: str, reason: str) -> dict[str, Any]:
        """Upload a run directory as a tar with its sha256; the service replays its golden traces, then switches.

        Args:
            url: the service's JSON API.
            run: what to serve.
            version: the registry version, which decisions will carry.
            reason: why, for the service's log of switches.

        Raises:
            ServiceRefused: the service kept its old model; says why.
            ObserverError: the service does not answer.
        """
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "run.tar"
            with tarfile.open(archive, "w") as tar:
                for file in sorted(run.path.rglob("*")):
                    if file.is_file():
                        tar.add(file, arcname=file.relative_to(run.path).as_posix(), recursive=False)
            with archive.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return self._send(
                "POST",
                url,
                "/v1/model",
                timeout=_SWITCH_TIMEOUT_S,
                content=_chunks(archive),
                params={"sha256": digest, "version": version, "reason": reason},
                headers={"content-type": "application/x-tar", "content-length": str(archive.stat().st_size)},
            )

    def _send(self, method: str, url: str, path: str, *, timeout: float, **request: Any) -> dict[str, Any]:
        headers = request.pop("headers", {})
        if self.api_key:
            headers["authorization"] = f"Bearer {self.api_key}"
        try:
            response = httpx.request(method, url + path, timeout=timeout, headers=headers, **request)
        except httpx.TransportError as error:
            raise ObserverError(
                f"the service at {url} does not answer ({type(error).__name__}); start it or mend OBSERVER_SERVICES"
            ) from error
        if not response.is_success:
            said = " ".join(response.text.split())[:300]
            raise ServiceRefused(f"the service at {url} answered {response.status_code} to {method} {path}: {said}")
        return response.json()


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk
