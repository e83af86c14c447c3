"""Services and records over a real nats-server, in the test's process."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import nats
import orjson
from nats.js.api import AckPolicy, ConsumerConfig
from serving.harness import make_request, new_trace, wait_until

from observer_core.decisions import Decision
from observer_core.home import Home
from observer_serving.app import App
from observer_serving.buffer.nats.buffer import NatsBuffer
from observer_serving.buffer.nats.link import LinkOptions, NatsLink
from observer_serving.buffer.nats.record import ReplicatedRecord
from observer_serving.buffer.received import Received
from observer_serving.config import Settings
from observer_serving.erase import Erased
from observer_serving.receive.wire import cut

PARTS = 4


class Worker:
    """A whole service without listeners, in this process; `cut_off` is what a machine that dies looks like."""

    def __init__(self, folder: Path, url: str, **settings: Any) -> None:
        self.settings = Settings.model_validate(
            {
                "listen": {"api": None, "otlp_http": None, "otlp_grpc": None},
                "buffer": {"kind": "nats", "url": url, "parts": PARTS, "lease": "6s", "max_bytes": "200MiB"},
                "assembly": {"quiet_period": "200ms", "timeout": "20s"},
                "spool": {"max_age": "300ms"},
                "policy": {"keep_threshold": 0.5, "hash_key": "test"},
                "drain": "10s",
            }
            | settings
        )
        self.home = folder
        self.app = App(self.settings, Home(folder))
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.do(self.app.start())

    def do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    @property
    def buffer(self) -> NatsBuffer:
        assert isinstance(self.app.wal, NatsBuffer)
        return self.app.wal

    def send(self, *traces: tuple[bytes, list[bytes]], attribute: str = "") -> None:
        """Take traces in, as a receiver does; returns once they are confirmed."""
        request = make_request(*traces, question=attribute or "Which river?")
        pieces = cut(request, request.SerializeToString()).pieces
        self.append(Received(time.time_ns(), tuple(pieces)))

    def append(self, received: Received) -> None:
        """Take an entry in; returns once it is confirmed."""

        async def run() -> None:
            await self.app.wal.append(received)

        self.do(run())

    def decisions(self) -> dict[str, Decision]:
        return {d.trace_id: d for d in self.app.record.find({}, limit=100_000)[0]}

    def decided_here(self) -> int:
        """Traces this worker decided itself."""
        metrics = self.app.engine._metrics
        return int(sum(s.value for m in (metrics.traces_kept, metrics.traces_dropped) for s in m.collect()[0].samples
                       if s.name.endswith("_total")))  # fmt: skip

    def part_of(self, trace_id: bytes) -> int:
        return self.app.record._link.part_of(trace_id)

    def erase(self, trace_id: bytes) -> Erased:
        return self.app._eraser.erase(trace_id)

    def stop(self) -> None:
        self.do(self.app.stop())

    def cut_off(self) -> None:
        """End the connection at once, with everything open, and never decide again."""
        link = self.app.record._link
        link.call(link._client._close(nats.NATS.CLOSED))
        self.app.engine._stopping.set()
        self.app.engine.put(None)
        wait_until(lambda: not self.app.engine.alive)
        link.close()


def decided_in_log(url: str, prefix: str = "observer") -> list[str]:
    """The trace id of every decision that the shared log holds, in order."""

    async def read() -> list[str]:
        client = await nats.connect(url)
        stream = client.jetstream()
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        made = await stream.add_consumer(f"{prefix}-record", config)
        feed = await stream.pull_subscribe_bind(consumer=made.name, stream=f"{prefix}-record")
        ids: list[str] = []
        for _ in range((await stream.stream_info(f"{prefix}-record")).state.messages):
            (message,) = await feed.fetch(1, timeout=10)
            event = orjson.loads(message.data)
            ids += [fields["trace_id"] for fields, _ in event.get("decided", ())]
            ids += [fields["trace_id"] for _, fields, _ in event.get("again", ())]
        await client.close()
        return ids

    return asyncio.run(read())


class Bare:
    """A link with its record, and no service around it."""

    def __init__(self, folder: Path, url: str, **options: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.link = NatsLink(LinkOptions(url, parts=PARTS, max_bytes=100 << 20, **options))
        self.record = ReplicatedRecord(folder, self.link)

    def own(self, part: int) -> None:
        self.record.own(part, self.link.call(self.record.mark(part)))

    def close(self) -> None:
        self.record.close()
        self.link.close()


def decision(trace_id: bytes) -> Decision:
    return Decision(
        trace_id=trace_id.hex(), decision="keep", reason="score", p_wrong=0.9, p_wrong_raw=0.9, threshold=0.5,
        keep_probability=1.0, severity="high", model="m", model_version="1", policy_version="p", project="x",
        mode="enforce", would_decide="keep", complete_reason="root_ended", spans=1,
        received_at="2026-01-01T00:00:00Z", decided_at="2026-01-01T00:00:01Z", latency_ms=1.0,
    )  # fmt: skip


def of_part(link: NatsLink, part: int) -> bytes:
    return next(i for i in (new_trace(1)[0] for _ in range(10_000)) if link.part_of(i) == part)
