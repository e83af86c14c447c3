"""Prometheus metrics of a System One server; one registry per server, nothing global."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """All metrics by name; see their help texts on `/metrics`."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"observer_systemone_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"observer_systemone_{name}", text, buckets=buckets, registry=registry)

        self.requests = counter("requests", "Answers to POST /v1/systemone, by status; 499: the client left", "status")
        self.questions = counter("questions", "Questions answered, by type", "type")
        self.input_tokens = counter("input_tokens", "Tokens of answered requests: each state once, each question")
        self.states_truncated = counter("states_truncated", "Answered requests whose state was cut")
        self.open_requests = Gauge(
            "observer_systemone_open_requests", "Requests taken in and not answered yet", registry=registry
        )
        self.request_seconds = histogram("request_seconds", "From request to answer, answered ones", _SECONDS)
        self.batch_seconds = histogram("batch_seconds", "Time the model takes for a batch", _SECONDS)
        self.batch_requests = histogram("batch_requests", "Requests of a batch", _COUNTS)

    def render(self) -> bytes:
        """The text Prometheus scrapes."""
        return generate_latest(self.registry)
