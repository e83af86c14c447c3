"""The attribute conventions agents write. A dialect is one module that answers the same questions about one span.

Each answers from its own attributes only and says nothing (`None`, `ABSENT`, an empty list) when they are not there;
`normalise` asks them in order of precedence, so several conventions on one span fill each other's gaps.
"""

from typing import Any, Protocol

from observer_core.traces.dialects import adk, genai, openinference, plain
from observer_core.traces.dialects.message import Kind, Message
from observer_core.traces.spans import SpanView


class Dialect(Protocol):
    """What a dialect module offers."""

    def kind(self, span: SpanView, /) -> Kind | None:
        """The kind of step, in OpenInference's words."""
        ...

    def input_text(self, span: SpanView, /) -> str | None:
        """What the step was asked, as a person would read it."""
        ...

    def output_text(self, span: SpanView, /) -> str | None:
        """What the step answered, as a person would read it."""
        ...

    def messages_in(self, span: SpanView, /) -> list[Message]:
        """The chat messages sent to a model."""
        ...

    def messages_out(self, span: SpanView, /) -> list[Message]:
        """The chat messages a model answered."""
        ...

    def model(self, span: SpanView, /) -> str | None:
        """The model's name."""
        ...

    def tokens(self, span: SpanView, /) -> tuple[int, int] | None:
        """Tokens a model call read and wrote."""
        ...

    def tool_name(self, span: SpanView, /) -> str | None: ...

    def tool_arguments(self, span: SpanView, /) -> Any:
        """The arguments as a JSON value, `ABSENT` when unknown."""
        ...

    def tool_result(self, span: SpanView, /) -> Any:
        """What came back as a JSON value, `ABSENT` when unknown."""
        ...

    def documents(self, span: SpanView, /) -> list[str]:
        """Texts of the documents a retrieval found."""
        ...


DIALECTS: tuple[Dialect, ...] = (openinference, genai, adk, plain)
"""In order of precedence: OpenInference over gen_ai over what is older or unnamed."""
