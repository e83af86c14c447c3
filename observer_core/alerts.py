"""Alerts: rules with a threshold and a window, that fire once, resolve by themselves, and reach Slack-compatible
webhooks.

The one home of Observer's alerts, for the pipeline's sensors and the live service alike. The clock is handed in: `at`
may be seconds or training steps, windows are in the same unit. State is JSON, so that a sensor's cursor can hold it;
an event that a webhook did not take stays in the state and is sent again.
"""

import json
import operator
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from observer_core.errors import InputError

Aggregate = Literal["mean", "max", "min", "last", "sum", "count"]
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_AGGREGATE: dict[str, Callable[[list[float]], float]] = {
    "mean": lambda values: sum(values) / len(values),
    "max": max,
    "min": min,
    "last": lambda values: values[-1],
    "sum": sum,
    "count": lambda values: float(len(values)),
}


@dataclass(frozen=True, slots=True)
class AlertRule:
    """Fires when the `aggregate` of `metric` over the last `window` compares with `threshold`; resolves when it no
    longer does.

    `min_samples`: values needed in the window before the rule says anything. `resolve_after`: how long it must be
    well before it resolves (0: at once), so that an alert does not flap. `resolve_threshold`: where well begins; the
    threshold itself by default.
    """

    name: str
    metric: str
    threshold: float
    compare: Literal[">", ">=", "<", "<="] = ">"
    window: float = 0.0
    aggregate: Aggregate = "mean"
    min_samples: int = 1
    resolve_after: float = 0.0
    resolve_threshold: float | None = None
    severity: Literal["critical", "warning", "info"] = "warning"
    message: str = ""

    def __post_init__(self) -> None:
        if self.compare not in _COMPARE or self.aggregate not in _AGGREGATE:
            raise InputError(
                f"alert {self.name!r}: {self.compare} {self.aggregate}: compare with {', '.join(_COMPARE)}, "
                f"aggregate by {', '.join(_AGGREGATE)}"
            )
        if self.window < 0 or self.min_samples < 1 or self.resolve_after < 0:
            raise InputError(f"alert {self.name!r}: window and resolve_after are ≥ 0, min_samples is ≥ 1")

    def breached(self, value: float) -> bool:
        return _COMPARE[self.compare](value, self.threshold)

    def well(self, value: float) -> bool:
        limit = self.threshold if self.resolve_threshold is None else self.resolve_threshold
        return not _COMPARE[self.compare](value, limit)


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """A rule fired or resolved."""

    rule: str
    status: Literal["firing", "resolved"]
    metric: str
    value: float
    threshold: float
    compare: str
    severity: str
    at: float
    since: float
    message: str

    def text(self) -> str:
        """One line for people."""
        head = "FIRING" if self.status == "firing" else "RESOLVED"
        tail = f": {self.message}" if self.message else ""
        return f"[{head}] {self.rule}: {self.metric} is {self.value:g} (alert {self.compare} {self.threshold:g}){tail}"


@dataclass(slots=True)
class _RuleState:
    samples: list[tuple[float, float]] = field(default_factory=list)
    since: float | None = None
    well_since: float | None = None


class AlertBook:
    """Evaluates rules over samples and remembers what is firing.

    Raises:
        InputError: two rules of one name.
    """

    def __init__(self, rules: Iterable[AlertRule], state: str | None = None) -> None:
        given = list(rules)
        self._rules = {rule.name: rule for rule in given}
        if len(self._rules) < len(given):
            raise InputError("two alert rules have one name; names must differ")
        self._states = {name: _RuleState() for name in self._rules}
        self.undelivered: list[AlertEvent] = []
        if state:
            self._load(state)

    @property
    def firing(self) -> list[str]:
        """Names of the rules that are firing."""
        return [name for name, state in self._states.items() if state.since is not None]

    def observe(self, metrics: Mapping[str, float | None], at: float) -> list[AlertEvent]:
        """Take in the values of `at` (in order) and return what fired or resolved; these events also join
        `undelivered`.
        """
        events = []
        for name, rule in self._rules.items():
            value = metrics.get(rule.metric)
            state = self._states[name]
            if value is not None:
                state.samples.append((at, float(value)))
            state.samples = [(t, v) for t, v in state.samples if t > at - rule.window or t == at]
            event = self._evaluate(rule, state, at)
            if event:
                events.append(event)
        self.undelivered += events
        return events

    def deliver(self, send: Callable[[AlertEvent], None]) -> int:
        """Send what was not yet delivered, in order; the number sent. What fails stays, and the exception goes on to
        the caller.
        """
        sent = 0
        while self.undelivered:
            send(self.undelivered[0])
            self.undelivered.pop(0)
            sent += 1
        return sent

    def to_json(self) -> str:
        """The state, for a file or a sensor's cursor."""
        states = {name: asdict(state) for name, state in self._states.items()}
        return json.dumps({"rules": states, "undelivered": [asdict(event) for event in self.undelivered]})

    def _load(self, text: str) -> None:
        stored = json.loads(text)
        for name, state in stored["rules"].items():
            if name in self._states:
                samples = [(float(t), float(v)) for t, v in state["samples"]]
                self._states[name] = _RuleState(samples, state["since"], state["well_since"])
        self.undelivered = [AlertEvent(**event) for event in stored["undelivered"]]

    def _evaluate(self, rule: AlertRule, state: _RuleState, at: float) -> AlertEvent | None:
        values = [value for _, value in state.samples]
        if len(values) < rule.min_samples and not (rule.aggregate == "count" and state.since is not None):
            return None
        value = _AGGREGATE[rule.aggregate](values)
        if state.since is None:
            if rule.breached(value):
                state.since, state.well_since = at, None
                return self._event(rule, "firing", value, at, at)
            return None
        if not rule.well(value):
            state.well_since = None
            return None
        if state.well_since is None:
            state.well_since = at
        if at - state.well_since < rule.resolve_after:
            return None
        since, state.since, state.well_since = state.since, None, None
        return self._event(rule, "resolved", value, at, since)

    @staticmethod
    def _event(
        rule: AlertRule, status: Literal["firing", "resolved"], value: float, at: float, since: float
    ) -> AlertEvent:
        return AlertEvent(
            rule.name, status, rule.metric, value, rule.threshold, rule.compare, rule.severity, at, since, rule.message
        )


class WebhookError(Exception):
    """A webhook did not take an event; it can be sent again."""


class Webhook:
    """A Slack-compatible webhook: `text` for every receiver, an attachment with a colour and fields for those that
    show it.

    Args:
        retries: further attempts within one call, on 429, 5xx and lost connections.
    """

    _COLOURS = {"critical": "#d00000", "warning": "#e8a33d", "info": "#3d7de8"}

    def __init__(
        self, url: str, *, retries: int = 2, timeout: float = 10.0, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._url, self._retries, self._timeout, self._sleep = url, retries, timeout, sleep

    def __call__(self, event: AlertEvent) -> None:
        """Send one event.

        Raises:
            WebhookError: it was not taken.
        """
        import httpx  # a service that alerts nobody starts without it

        problem = ""
        for attempt in range(self._retries + 1):
            if attempt:
                self._sleep(0.5 * 2 ** (attempt - 1))
            try:
                answer = httpx.post(self._url, json=self.payload(event), timeout=self._timeout)
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if answer.is_success:
                return
            problem = f"HTTP {answer.status_code}"
            if answer.status_code not in (429, 500, 502, 503, 504):
                break
        raise WebhookError(f"the webhook did not take {event.rule!r} ({problem})")

    def payload(self, event: AlertEvent) -> dict[str, Any]:
        colour = "#2eb67d" if event.status == "resolved" else self._COLOURS.get(event.severity, "#e8a33d")
        values = {
            "metric": event.metric,
            "value": f"{event.value:g}",
            "threshold": f"{event.compare} {event.threshold:g}",
        }
        fields = [{"title": title, "value": value, "short": True} for title, value in values.items()]
        return {"text": event.text(), "attachments": [{"color": colour, "fallback": event.text(), "fields": fields}]}
