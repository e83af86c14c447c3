"""HTTP/1.1 on the OTLP port: uvicorn's connection handling, without an ASGI application in between.

ASGI costs two task switches and several copies of the body per request, more than taking the spans in. Here a body is
collected once and an answer is one write. Requests of one connection are answered in the order they came; while
one is being answered and the next has come, nothing further is read.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from observer_serving.connections import PatientProtocol
from observer_serving.receive.compression import too_large
from observer_serving.receive.http import Answer, OtlpHttp, Request, refused, too_many
from observer_serving.receive.status import (
    BAD_DATA,
    CONTENT_TYPES,
    HEAD_TOO_LARGE,
    INTERNAL,
    RefusedError,
)

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 << 10
MAX_TRAILER_BYTES = 8 << 10
"""What may follow the last chunk of a body, or stand between two chunks; it is read and thrown away."""
LINGER_SECONDS = 5.0
"""How long the rest of a body is taken in and thrown away after its request was refused: who is still sending would not
see the answer if the connection were closed at once."""


@dataclass(slots=True, eq=False)
class _Exchange:
    """A request whose head has come, and the answer to it once there is one."""

    request: Request
    keep_alive: bool
    expects_100: bool = False
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    is_complete: bool = False
    answer: Answer | None = None
    closes: bool = False


class OtlpProtocol(PatientProtocol):
    """One connection; every answer is ours, also to what is no HTTP.

    A broken request line or header is a 400 and an endless head or trailer a 431, both with a `google.rpc.Status` as
    body, in the encoding of the request when its content type has come already, else JSON. The requests before it are
    answered first.
    """

    app: OtlpHttp  # pyright: ignore[reportIncompatibleVariableOverride]
    parser: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True
        self._counted = 0  # bytes of this head, or of these trailers, as far as the parser has told them
        self._unfinished = 0  # bytes that the parser was fed since it last got on
        self._got_on = False
        self._ended = False  # nothing further is read
        self._exchanges: deque[_Exchange] = deque()  # not answered yet, in order
        self._newest: _Exchange | None = None  # whose body comes, if it does
        self._answering = False
        self._shutting_down = False
        self._end_of_patience: asyncio.TimerHandle | None = None

    # -- what comes

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        rest = memoryview(data)
        while rest and not self._ended:
            length = self._room - self._unfinished + 1 if self._in_head else len(rest)
            self._got_on = False
            self._feed(rest[:length])
            self._unfinished = 0 if self._got_on else self._unfinished + len(rest[:length])
            if self._unfinished > self._room and not self._ended:
                self._refuse(self._too_long())
            rest = rest[length:]
        if self.is_in_body():
            self.got_on()

    def is_in_body(self) -> bool:
        return self._newest is not None

    def is_waiting(self) -> bool:
        """Not while an earlier request is being answered: then nothing further is read."""
        return not self._exchanges or self._exchanges[0] is self._newest

    def _feed(self, data: memoryview) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._give_up(error.__context__ or error)
        except httptools.HttpParserError:
            self._refuse(RefusedError(BAD_DATA, "this is no HTTP; send HTTP/1.1 as its specification says"))
        except httptools.HttpParserUpgrade:  # which nobody has to follow; what comes after it cannot be parsed
            self._ended = True

    @property
    def _room(self) -> int:
        return MAX_HEAD_BYTES if self._in_head else MAX_TRAILER_BYTES

    def _too_long(self) -> RefusedError:
        what = "head is" if self._in_head else "trailers or chunk extensions are"
        return RefusedError(HEAD_TOO_LARGE, f"the request's {what} longer than {self._room} bytes; send less")

    def _count(self, size: int) -> None:
        self._counted += size
        if self._counted > self._room:
            raise self._too_long()

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._counted = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if self._in_head:
            super().on_header(name, value)

    def on_chunk_header(self) -> None:
        self._got_on = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._got_on = True
        self._counted = 0
        parser = self.parser
        path = (httptools.parse_url(self.url).path or b"/").decode("ascii")
        request = Request(
            parser.get_method().decode("ascii"), unquote(path) if "%" in path else path, dict(self.headers)
        )
        keep_alive = parser.get_http_version() != "1.0" and parser.should_keep_alive() and not parser.should_upgrade()
        exchange = self._newest = _Exchange(
            request, keep_alive, self.expect_100_continue, answer=self.app.refusal(request)
        )
        self._exchanges.append(exchange)
        if exchange.answer is not None or exchange.expects_100:
            self._advance()

    def on_body(self, body: bytes) -> None:
        self._got_on = True
        exchange = self._newest
        if exchange is None or exchange.answer is not None:
            return
        size = len(body)
        exchange.size += size
        exchange.parts.append(body)
        fits = self.app.hold(size)
        if exchange.size > self.app.max_request:
            self._turn_away(exchange, too_large(self.app.max_request))
        elif not fits:
            self._turn_away(exchange, too_many())

    def _let_go(self, exchange: _Exchange) -> None:
        """Its body is needed no longer."""
        exchange.parts.clear()
        self.app.hold(-exchange.size)
        exchange.size = 0

    def _turn_away(self, exchange: _Exchange, refusal: RefusedError) -> None:
        self._let_go(exchange)
        exchange.answer = refused(refusal, exchange.request.encoding)
        self._advance()

    def on_message_complete(self) -> None:
        self._in_head = self._got_on = True
        exchange, self._newest = self._newest, None
        if exchange is not None:
            exchange.is_complete = True
        if exchange is not None and self._end_of_patience is not None:
            self._end_of_patience.cancel()
            self._end_of_patience = None
            self._rest(exchange)
        self._advance()

    # -- what goes

    def _advance(self) -> None:
        """Answer the oldest requests as far as that is possible now."""
        waiting = self._exchanges
        while waiting and not (self._answering or self.flow.write_paused or self.transport.is_closing()):
            exchange = waiting[0]
            if exchange.answer is not None:
                waiting.popleft()
                self._write(exchange, exchange.answer)
            elif exchange.is_complete:
                self._answering = True
                self._ask(exchange)
            else:
                if exchange.expects_100:
                    exchange.expects_100 = False
                    self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                break
        if len(waiting) > 1:
            self.flow.pause_reading()
        else:
            self.flow.resume_reading()

    def _ask(self, exchange: _Exchange) -> None:
        parts, exchange.parts = exchange.parts, []
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        at_once = True

        def reply(answer: Answer) -> None:
            self._let_go(exchange)
            exchange.answer = answer
            self._answering = False
            if not at_once:  # else who asked looks himself, and does not end up in himself a thousand requests deep
                self._advance()

        self.app.answer(exchange.request, body, reply)
        at_once = False

    def _write(self, exchange: _Exchange, answer: Answer) -> None:
        closes = not exchange.keep_alive or self._shutting_down
        head = [STATUS_LINE[answer.status]]
        for name, value in (*self.server_state.default_headers, *answer.headers):
            head += (name, b": ", value, b"\r\n")
        end = b"connection: close\r\n\r\n" if closes else b"\r\n"
        head.append(b"content-type: %b\r\ncontent-length: %d\r\n%b" % (
            CONTENT_TYPES[answer.encoding].encode(), len(answer.body), end,
        ))  # fmt: skip
        if exchange.request.method != "HEAD":
            head.append(answer.body)
        self.transport.write(b"".join(head))
        exchange.closes = closes
        if exchange.is_complete:
            self._rest(exchange)
        else:
            self._end_of_patience = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _rest(self, exchange: _Exchange) -> None:
        """After a whole request and its answer: close the connection, or wait for the next one."""
        if exchange.closes:
            self.transport.close()
        elif not self._exchanges:
            self.got_on()
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for exchange in list(self._exchanges)[self._answering :]:  # the one being answered is held until it is
            self._let_go(exchange)

    def eof_received(self) -> bool | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Who has said everything may still listen for the answers (TLS knows no such half)."""
        if self.scheme == "https" or not self._exchanges or not self._exchanges[-1].is_complete:
            return None
        self._exchanges[-1].keep_alive = False
        return True

    def resume_writing(self) -> None:
        super().resume_writing()
        self._advance()

    def shutdown(self) -> None:
        """Close the connection, after the answer if a request is under way."""
        self._shutting_down = True
        if not self._exchanges:
            self.transport.close()

    def _give_up(self, error: BaseException) -> None:
        """What a callback of the parser raised: too much came, the URL was none, or the fault is ours."""
        if isinstance(error, RefusedError):
            self._refuse(error)
        elif isinstance(error, httptools.HttpParserInvalidURLError | UnicodeDecodeError):
            self._refuse(
                RefusedError(BAD_DATA, "the request's URL cannot be read; send one as HTTP/1.1's specification says")
            )
        else:
            log.error("cannot take an OTLP request", exc_info=error)
            self._refuse(RefusedError(INTERNAL, "a fault in observer; its log says more"))

    def _refuse(self, refusal: RefusedError) -> None:
        """Read nothing further; once the requests before are answered, answer with the refusal and close."""
        self._ended = True
        exchange = self._newest
        if exchange is None:
            exchange = _Exchange(Request("", "", dict(self.headers or ())), False)
            self._exchanges.append(exchange)
        elif exchange not in self._exchanges:  # answered before its body ended
            self.transport.close()
            return
        self._let_go(exchange)
        exchange.keep_alive, exchange.is_complete = False, True
        exchange.answer = refused(refusal, exchange.request.encoding)
        self._advance()
