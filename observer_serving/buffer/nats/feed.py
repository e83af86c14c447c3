"""Messages of a stream, in order, through a consumer of the reader's own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError, NotFoundError

from observer_core.errors import ObserverError
from observer_serving.buffer.nats.link import MESSAGE_ID, NatsLink


class FeedLostError(ObserverError):
    """Messages on their way here may be lost with a connection; read again from what is known."""


class Feed:
    """Messages of one consumer, in order. Says so when some may have been lost on the way."""

    def __init__(self, link: NatsLink, stream: str, consumer: str, subscription: Any) -> None:
        self._link = link
        self._stream = stream
        self._consumer = consumer
        self._subscription = subscription
        self._generation = link.generation
        self._seen = 0
        self._behind = 0

    @classmethod
    async def open(cls, link: NatsLink, stream: str, config: ConsumerConfig) -> "Feed":
        """A feed over a new consumer."""
        made = await link.stream.add_consumer(stream, config)
        return cls(link, stream, made.name, await link.stream.pull_subscribe_bind(consumer=made.name, stream=stream))

    async def next(self, most: int, *, seconds: float) -> list[Any]:
        """Up to `most` messages, none after `seconds` without any.

        Raises:
            FeedLostError: see there.
        """
        if self._link.generation != self._generation:
            raise FeedLostError("the connection was renewed")
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # nats-py loses a cancellation that meets an answer
            raise asyncio.CancelledError
        try:
            messages = await self._subscription.fetch(most, timeout=seconds)
        except TimeoutError:
            await self._check()
            return []
        self._seen += len(messages)
        self._behind = 0
        if messages and messages[-1].metadata.sequence.consumer != self._seen:
            raise FeedLostError(f"message {self._seen} of the consumer {self._consumer} did not arrive")
        return messages

    async def pending(self) -> int:
        """Messages not sent here yet."""
        return (await self._link.stream.consumer_info(self._stream, self._consumer)).num_pending or 0

    async def close(self) -> None:
        await self._subscription.unsubscribe()

    async def _check(self) -> None:
        try:
            info = await self._link.stream.consumer_info(self._stream, self._consumer)
        except NotFoundError:
            raise FeedLostError(f"the consumer {self._consumer} is gone") from None
        delivered = info.delivered.consumer_seq if info.delivered else 0
        self._behind = self._behind + 1 if delivered > self._seen else 0
        if self._behind > 1:  # twice: the first time they may have been under way
            raise FeedLostError(f"{delivered - self._seen} messages were sent and did not arrive")


def record_consumer(start: int) -> ConsumerConfig:
    """Reads the record from message number `start` on."""
    return ConsumerConfig(
        ack_policy=AckPolicy.NONE,
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=start,
        inactive_threshold=60.0,
    )


def part_consumer(name: str, subject: str) -> ConsumerConfig:
    """Reads everything of a part that nobody has dealt with, and keeps it until it is acknowledged."""
    return ConsumerConfig(
        durable_name=name,
        filter_subject=subject,
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.ALL,
        ack_wait=365 * 86_400.0,  # nothing is sent twice: what is lost on the way shows, and ends the consumer
        max_ack_pending=-1,
    )


async def messages(link: NatsLink, stream: str, subject: str) -> AsyncIterator[tuple[int, bytes]]:
    """All messages of a subject with their numbers, without a consumer: a work queue allows only its owner's."""
    number = 1
    while True:
        try:
            message = await link.stream.get_msg(stream, seq=number, subject=subject, next=True)
        except NotFoundError:
            return
        number = (message.seq or 0) + 1
        yield number - 1, message.data or b""


async def holds(link: NatsLink, stream: str, number: int, message_id: str) -> bool:
    """Whether a message of a stream is the one it was: a server that lost its last messages gives their numbers anew.

    One that has expired or was overwritten is taken for the same.
    """
    if number > (await link.stream.stream_info(stream)).state.last_seq:
        return False
    try:
        found = await link.stream.get_msg(stream, number) if number else None
    except NotFoundError:
        return True
    return found is None or (found.headers or {}).get(MESSAGE_ID, "") == message_id


async def delete(link: NatsLink, stream: str, number: int) -> None:
    """Have the server overwrite a message and forget it; one that is gone already is none the worse."""
    try:
        await link.stream.delete_msg(stream, number)
    except APIError:
        try:
            await link.stream.get_msg(stream, number)
        except NotFoundError:
            return
        raise
