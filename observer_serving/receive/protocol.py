"""uvicorn's HTTP/1.1, but what it refuses by itself is told in OTLP's words, and a request's head has a limit."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from observer_serving.receive.status import BAD_DATA, CONTENT_TYPES, HEAD_TOO_LARGE, Kind, RefusedError, encoding_of

MAX_HEAD_BYTES = 64 << 10


class OtlpProtocol(HttpToolsProtocol):
    """A broken request line or header is a 400 and an endless head a 431, both with a `google.rpc.Status` as body.

    The body is in the encoding of the request when its content type has come already, else JSON.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True
        self._head_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self._in_head else 0
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(HEAD_TOO_LARGE, f"the request's head is longer than {MAX_HEAD_BYTES} bytes; send less")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._in_head = False

    def send_400_response(self, msg: str) -> None:
        self._refuse(BAD_DATA, f"{msg} Send HTTP/1.1 as its specification says.")

    def _refuse(self, kind: Kind, message: str) -> None:
        content_type = dict(self.headers or ()).get(b"content-type", b"")
        encoding = encoding_of(content_type) or "json"
        body = RefusedError(kind, message).body(encoding)
        head = (
            f"content-type: {CONTENT_TYPES[encoding]}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        ).encode()
        self.transport.write(STATUS_LINE[kind.http] + head + body)
        self.transport.close()
