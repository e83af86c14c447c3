"""Texts that are no Unicode, made whole: a client that cuts a text in the middle of a character, as JavaScript's
`substring` does with an emoji and a limit in bytes does with any other, must not lose all spans of its request.

Only for requests that cannot be read otherwise. What is no character becomes U+FFFD; nothing else changes.
"""

import re
from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def whole_json(body: bytes) -> bytes | None:
    """JSON text without halves of surrogate pairs and in UTF-8; `None` where it is that already."""
    mended = _ESCAPE.sub(lambda escape: rb"\ufffd" if escape["half"] else escape[0], body)
    mended = mended.decode(errors="replace").encode()
    return None if mended == body else mended


def whole_protobuf(body: bytes) -> bytes | None:
    """An export request whose texts are UTF-8; `None` where they are that already, or it is no request."""
    try:
        request = _with_bytes_for_texts().FromString(body)
    except DecodeError:
        return None
    return request.SerializeToString() if _mend(request, ExportTraceServiceRequest.DESCRIPTOR) else None


@cache
def _with_bytes_for_texts() -> type[Message]:
    """The request's message with `bytes` for every `string`: the same on the wire, and nobody looks what is in them."""
    pool = DescriptorPool()

    def add(file: FileDescriptor) -> None:
        for other in file.dependencies:
            add(other)
        copy = FileDescriptorProto()
        file.CopyToProto(copy)
        waiting = list(copy.message_type)
        while waiting:
            message = waiting.pop()
            waiting += message.nested_type
            for field in message.field:
                if field.type == FieldDescriptorProto.TYPE_STRING:
                    field.type = FieldDescriptorProto.TYPE_BYTES
        pool.Add(copy)  # pyright: ignore[reportAttributeAccessIssue]

    add(ExportTraceServiceRequest.DESCRIPTOR.file)
    return GetMessageClass(pool.FindMessageTypeByName(ExportTraceServiceRequest.DESCRIPTOR.full_name))


def _mend(message: Message, descriptor: Any) -> bool:
    """Make the texts of a message whole, told by the descriptor that still has them as such; whether one was not."""
    mended = False
    for field, value in message.ListFields():
        real = descriptor.fields_by_name[field.name]
        if real.message_type is not None:
            for one in value if real.is_repeated else (value,):
                mended |= _mend(one, real.message_type)
        elif real.type == FieldDescriptor.TYPE_STRING:
            texts = [_whole(text) for text in (value if real.is_repeated else (value,))]
            if texts != (list(value) if real.is_repeated else [value]):
                mended = True
                if real.is_repeated:
                    value[:] = texts
                else:
                    setattr(message, field.name, texts[0])
    return mended


def _whole(text: bytes) -> bytes:
    return text.decode(errors="replace").encode()
