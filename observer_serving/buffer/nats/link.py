"""One connection to NATS on a thread of its own, and the streams and the bucket that the service keeps there.

    <prefix>-spans    work queue: what was received and is not dealt with, one subject per part (see `part_of`)
    <prefix>-record   log of everything that is decided, one subject per part; the truth behind every replica's record
    <prefix>-leases   key-value, expires: which worker has which part, and who is alive
    <prefix>-shared   key-value: what all replicas must have in common for ever (the number of parts, the hash key)
    <prefix>-epochs   key-value, expires: the epochs of the review budgets

nats-py is imported in this folder only, so that the service runs without it.
"""

import asyncio
import contextlib
import itertools
import logging
import secrets
import threading
import zlib
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import DiscardPolicy, KeyValueConfig, RetentionPolicy
from nats.js.api import StreamConfig as _StreamConfig
from nats.js.errors import APIError, KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue

from observer_core.errors import InputError, ObserverError

log = logging.getLogger(__name__)

ANSWER_SECONDS = 3.0
CALL_SECONDS = 30.0
DUPLICATE_WINDOW_SECONDS = 120.0
_RECONNECT_SECONDS = 0.25
_WRONG_LAST_SEQUENCE = 10071
_STREAM_FULL = (10047, 10054, 10077)  # resources exceeded, message exceeds maximum, maximum bytes exceeded
MESSAGE_ID = "Nats-Msg-Id"
_HEADER_BYTES = 4096
_LEAST_PAYLOAD = 64 << 10
_EPOCHS_SECONDS = 2 * 86_400.0

T = TypeVar("T")


class LinkError(ObserverError):
    """NATS did not do what was asked; asking again may help."""


class StreamFullError(LinkError):
    """The stream holds as much as it may."""


class FencedError(ObserverError):
    """Somebody else wrote to a part's record meanwhile: the part is theirs."""


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Where NATS is and how this deployment uses it.

    Attributes:
        url: `nats://…` or `tls://…`, several separated by commas; may hold user and password, or a token.
        credentials: a `.creds` file.
        prefix: before every name, so that deployments can share a server.
        parts: into how many parts traces are spread; fixed for the life of the streams.
        replicas: of every stream, on a cluster.
        max_bytes: of what was received and is not dealt with.
        record_age: seconds that decisions are remembered for late spans.
        lease: seconds after which the parts of a worker that does not answer go to others.
    """

    url: str
    credentials: Path | None = None
    prefix: str = "observer"
    parts: int = 16
    replicas: int = 1
    max_bytes: int = 8 << 30
    record_age: float = 7 * 86_400.0
    lease: float = 10.0


class NatsLink:
    """Connects on construction and makes what is missing on the server.

    Raises:
        InputError: no server answers, it has no JetStream, or the streams are for another number of parts.
    """

    def __init__(self, options: LinkOptions) -> None:
        self.options = options
        self.spans_stream = f"{options.prefix}-spans"
        self.record_stream = f"{options.prefix}-record"
        self.worker = secrets.token_hex(6)
        """This process among the workers."""
        self.generation = 0
        """Counts reconnections: what was under way on the old connection may be lost."""
        self._client: Client | None = None
        self._failure: Exception | None = None  # the last of the connection
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="observer-nats", daemon=True)
        self._thread.start()
        try:
            self.call(self._open())
        except (NatsError, OSError, TimeoutError, ValueError, ObserverError) as error:
            self.close()
            raise InputError(f"cannot use NATS at {options.url.rpartition('@')[2]}: {self._why(error)}") from None

    def _why(self, error: Exception) -> str:
        """What kept the service from starting, and the mend."""
        if isinstance(error, ObserverError):
            return str(error)
        if isinstance(error, APIError) and error.err_code in _STREAM_FULL:
            return f"{error.description}; lower buffer.max_bytes, or let the server have more (max_file_store)"
        said = [str(one) or type(one).__name__ for one in (error, self._failure) if one is not None]
        mend = "mend buffer.url or buffer.credentials" if self.options.credentials else "mend buffer.url"
        return f"{': '.join(dict.fromkeys(said))}; start nats-server -js or {mend}"

    # -- from other threads

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None = CALL_SECONDS) -> T:
        """Run `work` on the connection's loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    async def call_async(self, work: Coroutine[Any, Any, T]) -> T:
        """The same from another event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` on the loop and do not wait for it."""
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Close the connection and end the thread."""
        if self._thread.is_alive():
            self._closing = True
            self.call(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    @property
    def closed(self) -> bool:
        """Whether the connection has ended for good: nothing more comes of waiting."""
        return self._client is not None and self._client.is_closed

    @property
    def max_payload(self) -> int:
        """Bytes that fit into one message, headers apart; a server that takes less refuses."""
        return max(self._client.max_payload if self._client else 0, _LEAST_PAYLOAD) - _HEADER_BYTES

    # -- names

    def part_of(self, trace_id: bytes) -> int:
        """The part a trace belongs to, the same on every replica."""
        return zlib.crc32(trace_id) % self.options.parts

    def spans_subject(self, part: int) -> str:
        return f"{self.options.prefix}.spans.{part}"

    def record_subject(self, part: int) -> str:
        return f"{self.options.prefix}.record.part.{part}"

    @property
    def beside_subject(self) -> str:
        """For additions to the record that any worker may make."""
        return f"{self.options.prefix}.record.beside"

    def again_subject(self, number: int) -> str:
        """For what is left of the record's message `number`, once a trace has been taken out of it."""
        return f"{self.options.prefix}.record.again.{number}"

    # -- on the loop

    async def _open(self) -> None:
        options = self.options

        async def reconnected() -> None:
            self.generation += 1
            log.warning("connected to NATS again")

        async def disconnected() -> None:
            if not self._closing:
                log.warning("the connection to NATS is lost; trying to get it back")

        async def failed(error: Exception) -> None:
            self._failure = error
            log.debug("NATS: %s", error)

        if options.credentials is not None:
            _check_credentials(options.credentials)
        self._client = _Client()
        await self._client.connect(
            options.url.split(","),
            name=f"observer {self.worker}",
            user_credentials=str(options.credentials) if options.credentials else None,
            connect_timeout=ANSWER_SECONDS,  # type: ignore[arg-type]
            max_reconnect_attempts=3,
            reconnect_time_wait=_RECONNECT_SECONDS,  # type: ignore[arg-type]
            reconnected_cb=reconnected,
            disconnected_cb=disconnected,
            error_cb=failed,
        )
        self._client.options["max_reconnect_attempts"] = -1  # patience only once it has worked
        if self._client.max_payload < _LEAST_PAYLOAD:
            raise ObserverError(f"it takes messages of {self._client.max_payload} bytes; set max_payload: 1MB there")
        self.stream = self._client.jetstream(timeout=ANSWER_SECONDS)
        shared = await self._bucket(KeyValueConfig(f"{options.prefix}-shared", replicas=options.replicas))
        self.shared = SharedValues(shared)
        parts = int(await self.shared.once("parts", str(options.parts).encode()))
        if parts != options.parts:
            raise ObserverError(
                f"its streams {options.prefix}-* are for buffer.parts: {parts}; set that, or another buffer.prefix"
            )
        await self._stream(
            name=self.spans_stream,
            subjects=[f"{options.prefix}.spans.*"],
            retention=RetentionPolicy.WORK_QUEUE,
            discard=DiscardPolicy.NEW,
            max_bytes=options.max_bytes,
            duplicate_window=DUPLICATE_WINDOW_SECONDS,
            num_replicas=options.replicas,
        )
        await self._stream(
            name=self.record_stream,
            subjects=[f"{options.prefix}.record.>"],
            retention=RetentionPolicy.LIMITS,
            max_age=options.record_age,
            duplicate_window=min(DUPLICATE_WINDOW_SECONDS, options.record_age),
            num_replicas=options.replicas,
        )
        self.epochs = SharedValues(
            await self._bucket(
                KeyValueConfig(f"{options.prefix}-epochs", ttl=_EPOCHS_SECONDS, replicas=options.replicas)
            )
        )
        self.leases = await self._bucket(
            KeyValueConfig(f"{options.prefix}-leases", ttl=options.lease, replicas=options.replicas)
        )
        window = min(DUPLICATE_WINDOW_SECONDS, options.lease)
        await self._limit(f"KV_{options.prefix}-leases", max_age=options.lease, duplicate_window=window)

    async def _end(self) -> None:
        if self._client is not None:
            with contextlib.suppress(NatsError, OSError, TimeoutError):  # the server is gone already
                await self._client.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _bucket(self, config: KeyValueConfig) -> KeyValue:
        try:
            return await self.stream.key_value(config.bucket)
        except NotFoundError:
            return await self.stream.create_key_value(config)

    async def _stream(self, **config: Any) -> None:
        """Make a stream, or give the one that is there the limits of the settings."""
        try:
            await self.stream.stream_info(config["name"])
        except NotFoundError:
            await self.stream.add_stream(_StreamConfig(**config))
            return
        names = ("max_bytes", "max_age", "duplicate_window")
        await self._limit(config["name"], **{name: config[name] for name in names if name in config})

    async def _limit(self, stream: str, **limits: Any) -> None:
        made = (await self.stream.stream_info(stream)).config
        if any(getattr(made, name) != value for name, value in limits.items()):
            await self.stream.update_stream(made.evolve(**limits))

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        message_id: str,
        expected: int | None = None,
        expected_in_stream: int | None = None,
    ) -> int:
        """Store a message; returns its number in the stream. Tries twice, which the message id makes harmless.

        Args:
            expected: the number of the subject's last message, as a condition.
            expected_in_stream: the number of the stream's last message, as a condition.

        Raises:
            FencedError: the last message is another one.
            StreamFullError: the stream has reached its limit.
            LinkError: no answer: the message may be stored or not.
        """
        headers = {MESSAGE_ID: message_id}
        if expected is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
        if expected_in_stream is not None:
            headers["Nats-Expected-Last-Sequence"] = str(expected_in_stream)
        for attempt in itertools.count(1):
            try:
                return (await self.stream.publish(subject, payload, timeout=ANSWER_SECONDS, headers=headers)).seq
            except APIError as error:
                if error.err_code == _WRONG_LAST_SEQUENCE:
                    raise FencedError(f"{subject}: {error.description}") from None
                if error.err_code in _STREAM_FULL:
                    raise StreamFullError(f"NATS cannot hold more: {error.description}") from None
                problem: Exception = error
            except (NatsError, OSError, TimeoutError) as error:
                problem = error
            if attempt == 2:
                raise LinkError(f"NATS did not confirm a message: {str(problem) or type(problem).__name__}") from None
        raise AssertionError("unreachable")

    async def acknowledge(self, reply: str) -> None:
        """Take a message off its stream; `reply` is its reply subject."""
        if self._client is not None:
            await self._client.publish(reply, b"+ACK")

    async def consumer_names(self, stream: str) -> list[str]:
        """All consumers of a stream. nats-py asks for more, and cannot read of one that is just going.

        Raises:
            LinkError: the server does not say.
        """
        assert self._client is not None
        names: list[str] = []
        while True:
            question = orjson.dumps({"offset": len(names)})
            answer = await self._client.request(f"$JS.API.CONSUMER.NAMES.{stream}", question, timeout=ANSWER_SECONDS)
            page = orjson.loads(answer.data)
            if "error" in page:
                raise LinkError(f"NATS does not tell the consumers of {stream}: {page['error'].get('description')}")
            names += page["consumers"] or []
            if not page["consumers"] or len(names) >= page["total"]:
                return names

    async def last_number(self, stream: str) -> int:
        """The number of a stream's last message; 0 when there is none (any more: they expire)."""
        state = (await self.stream.stream_info(stream)).state
        return state.last_seq if state.messages else 0


class _Client(Client):
    """Does not go on in the open where `tls://` was asked for: nats-py leaves that to the server, and so to anybody
    who answers in its place."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        wanted = self._current_server is not None and self._current_server.uri.scheme == "tls"
        if initial_connection and wanted and not info.get("tls_required"):
            raise NatsError("the server does not speak TLS, which buffer.url asks for")
        await super()._process_info(info, initial_connection)


def _check_credentials(file: Path) -> None:
    try:
        import nkeys  # noqa: F401
    except ImportError:
        raise ObserverError("buffer.credentials needs nkeys; install observer-pipeline[nats]") from None
    try:
        text = file.read_text()
    except (OSError, ValueError) as error:
        raise ObserverError(f"cannot read {file}: {error}; mend buffer.credentials") from None
    if "BEGIN NATS USER JWT" not in text or "BEGIN USER NKEY SEED" not in text:
        raise ObserverError(f"{file} is no .creds file; mend buffer.credentials")


class SharedValues:
    """Values that the first replica to need them writes and all others read."""

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket

    async def once(self, key: str, value: bytes) -> bytes:
        """The value under `key`; `value` when there was none."""
        try:
            await self._bucket.create(key, value)
        except KeyWrongLastSequenceError:
            return await self.get(key) or value
        return value

    async def put(self, key: str, value: bytes) -> None:
        await self._bucket.put(key, value)

    async def get(self, key: str) -> bytes | None:
        try:
            return (await self._bucket.get(key)).value
        except KeyNotFoundError:
            return None
