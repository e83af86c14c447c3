"""Services started by the tests."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nats_server import NatsServer, running_nats
from serving.harness import Service
from serving.nats_workers import Worker


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Start a service with the given settings; all of them are killed at the end."""
    started: list[Service] = []

    def start(*, ready: bool = True, **settings: Any) -> Service:
        made = Service(tmp_path / f"home{len(started)}", settings).start(ready=ready)
        started.append(made)
        return made

    yield start
    for one in started:
        if one.process is not None and one.process.poll() is None:
            one.kill()


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all tests of a module that only talk to it; everything is kept."""
    made = Service(tmp_path_factory.mktemp("shared") / "home", {"policy": {"keep_threshold": 0.0}}).start()
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with running_nats(tmp_path / "nats") as running:
        yield running


@pytest.fixture
def worker(tmp_path: Path, server: NatsServer) -> Iterator[Callable[..., Worker]]:
    """Start workers over the same server, each with a folder of its own."""
    started: list[Worker] = []

    def start(*, home: Path | None = None, **settings: Any) -> Worker:
        started.append(Worker(home or tmp_path / f"home{len(started)}", server.url, **settings))
        return started[-1]

    return start
