"""Bodies as they were before compression, never larger than allowed: a bomb is refused, not unpacked."""

import zlib

import zstandard

from observer_serving.receive.status import BAD_DATA, TOO_LARGE, UNSUPPORTED, RefusedError

FIRST_PIECE = 256
"""Bytes of a compressed member that are read first."""


def too_large(limit: int) -> RefusedError:
    """The refusal of a body above `limit` bytes; not retryable."""
    return RefusedError(
        TOO_LARGE,
        f"the request has more than {limit} bytes uncompressed; send less at once or raise receive.max_request",
    )


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """The body behind a `Content-Encoding` (`gzip`, `deflate`, `zstd`, `identity` or empty).

    Raises:
        RefusedError: unknown encoding, damaged data, or more than `limit` bytes.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        data = body
    elif name in ("gzip", "x-gzip"):
        data = _inflate(body, limit, zlib.MAX_WBITS | 16)
    elif name == "deflate":
        data = _inflate(body, limit, zlib.MAX_WBITS)
    elif name == "zstd":
        data = _unzstd(body, limit)
    else:
        raise RefusedError(UNSUPPORTED, f"content encoding {encoding!r} is not supported; use gzip, zstd or none")
    if len(data) > limit:
        raise too_large(limit)
    return data


def _inflate(body: bytes, limit: int, window: int) -> bytes:
    """All members of a stream, at most `limit` + 1 bytes."""
    out: list[bytes] = []
    size = at = 0
    whole = memoryview(body)
    try:
        while at < len(body):
            member = zlib.decompressobj(window)
            # In growing pieces: zlib copies what follows a member, and a body may consist of a hundred thousand.
            piece = FIRST_PIECE
            while not member.eof:
                if at == len(body):
                    raise RefusedError(BAD_DATA, "the compressed body ends too early; send it again")
                given = whole[at : at + piece]
                data = member.decompress(given, limit + 1 - size)
                out.append(data)
                size += len(data)
                if size > limit:
                    raise too_large(limit)
                at += len(given) - len(member.unused_data)
                piece *= 2
    except zlib.error as error:
        raise RefusedError(
            BAD_DATA, f"the body is not valid {'deflate' if window == zlib.MAX_WBITS else 'gzip'} data: {error}"
        ) from None
    return b"".join(out)


def _unzstd(body: bytes, limit: int) -> bytes:
    if not body:  # an empty request, as under gzip
        return body
    try:
        announced = zstandard.frame_content_size(body)  # -1: the frame does not say
        if announced > limit:
            raise too_large(limit)
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body, read_across_frames=True) as reader:
            data = reader.read(limit + 1)
            while len(data) <= limit and (more := reader.read(limit + 1 - len(data))):
                data += more
        is_whole = _ends_whole(body)
    except zstandard.ZstdError as error:
        raise RefusedError(BAD_DATA, f"the body is not valid zstd data: {error}") from None
    if not is_whole:
        raise RefusedError(BAD_DATA, "the compressed body ends too early; send it again")
    return data


def _ends_whole(body: bytes) -> bool:
    """Whether the last zstd frame of valid data is complete, which a decoder of streams does not mind (RFC 8878)."""
    view = memoryview(body)
    position = 0
    while position < len(body):
        if len(body) - position < 8:  # no frame is shorter
            return False
        magic = int.from_bytes(view[position : position + 4], "little")
        if magic & ~0xF == 0x184D2A50:  # a skippable frame: its size, then what nobody reads
            position += 8 + int.from_bytes(view[position + 4 : position + 8], "little")
            continue
        parameters = zstandard.get_frame_parameters(view[position:])
        position += zstandard.frame_header_size(view[position:])
        last = 0
        while not last:
            if position + 3 > len(body):
                return False
            block = int.from_bytes(view[position : position + 3], "little")
            last, kind, size = block & 1, block >> 1 & 3, block >> 3
            position += 3 + (1 if kind == 1 else size)  # 1: one byte, repeated
        position += 4 if parameters.has_checksum else 0
    return position == len(body)
