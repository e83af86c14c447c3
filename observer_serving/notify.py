"""Notes to people: what the live service watches, and alerts about it to Slack-compatible webhooks.

Decisions are counted into buckets of a sixtieth of a rule's window, so that a rule costs the same at any rate. The
thresholds, the resolving and the webhook are those of `observer_core.alerts`. What fires and what no webhook has taken
yet is kept in `serving/notify.json` over a restart.
"""

import json
import logging
import threading
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from observer_core.alerts import AlertBook, AlertEvent, AlertRule, Webhook, WebhookError
from observer_core.decisions import Decision
from observer_core.durations import format_duration
from observer_core.files import write_whole
from observer_serving.candidate import Candidate
from observer_serving.clock import Clock
from observer_serving.config import NotifyRule, NotifySettings, Settings
from observer_serving.metrics import Metrics

log = logging.getLogger(__name__)

STATE_FILE = "notify.json"
EVALUATOR = "evaluator."
_TICK_S = 1.0
_BUCKETS = 60
_MAX_UNDELIVERED = 1000
_MAX_WAIT_S = 300.0
_STOP_WAIT_S = 2.0


def trace_url(settings: Settings) -> str | None:
    """Where people see a trace: as set, else in the first Phoenix among the exporters."""
    if settings.notify.trace_url is not None:
        return settings.notify.trace_url
    bases = [one.endpoint.removesuffix("/v1/traces") for one in settings.exporters if one.project is not None]
    return f"{bases[0].rstrip('/')}/redirects/traces/{{trace_id}}" if bases else None


def sample(metric: str, decision: Decision) -> float | None:
    """What a decision adds to a metric; `None` when it says nothing about it."""
    if metric.startswith(EVALUATOR):
        return decision.evaluators.get(metric.removeprefix(EVALUATOR))
    match metric:
        case "high_severity":
            return float(decision.severity == "high")
        case "kept":
            return float(decision.decision == "keep")
        case "scorer_failed" | "overload":
            return float(decision.reason == metric)
        case _:
            return decision.p_wrong


@dataclass(slots=True)
class _Bucket:
    number: int
    total: float = 0.0
    count: int = 0
    least: float = float("inf")
    most: float = float("-inf")


class _Watch:
    """One rule over the stream of decisions: its buckets, and the trace it was last about."""

    def __init__(self, rule: NotifyRule) -> None:
        self.rule = rule
        self._width = rule.window / _BUCKETS
        self._buckets: deque[_Bucket] = deque()
        self.example: Decision | None = None

    def add(self, decision: Decision, now: float) -> None:
        if self.rule.project not in (None, decision.project):
            return
        value = sample(self.rule.metric, decision)
        if value is None:
            return
        number = int(now // self._width)
        if not self._buckets or self._buckets[-1].number < number:
            self._buckets.append(_Bucket(number))
        bucket = self._buckets[-1]
        bucket.total += value
        bucket.count += 1
        bucket.least, bucket.most = min(bucket.least, value), max(bucket.most, value)
        if value and self.rule.compare in (">", ">=") and decision.decision == "keep":
            self.example = decision

    def value(self, now: float) -> float | None:
        """The rule's aggregate over its window; `None` with too few decisions."""
        while self._buckets and self._buckets[0].number <= int(now // self._width) - _BUCKETS:
            self._buckets.popleft()
        count = sum(bucket.count for bucket in self._buckets)
        if self.rule.aggregate == "sum":
            return sum(bucket.total for bucket in self._buckets)
        if count < self.rule.min_samples:
            return None
        match self.rule.aggregate:
            case "mean":
                return sum(bucket.total for bucket in self._buckets) / count
            case "min":
                return min(bucket.least for bucket in self._buckets)
            case _:
                return max(bucket.most for bucket in self._buckets)


class Notifier:
    """Watches decisions and tells the webhooks, on a thread of its own; a webhook that is down loses nothing.

    Args:
        trace_url: `{trace_id}` in it is replaced, for a link to where people see a trace.
    """

    def __init__(
        self, settings: NotifySettings, folder: Path, clock: Clock, metrics: Metrics, *, trace_url: str | None = None
    ) -> None:
        self._watches = [_Watch(rule) for rule in settings.rules]
        self._file = folder / STATE_FILE
        self._clock = clock
        self._metrics = metrics
        self._trace_url = trace_url
        self._webhooks = {name: Webhook(url.get_secret_value(), retries=0) for name, url in settings.webhooks.items()}
        states = json.loads(self._file.read_bytes()) if self._file.exists() else {}
        rules = [_alert(rule) for rule in settings.rules]
        # A book per webhook: what one of them has taken another may still be owed.
        self._books = {name: AlertBook(rules, states.get(name)) for name in self._webhooks}
        self._started = clock.monotonic()
        self._retry_at = 0.0
        self._failed = 0
        self._arrived: deque[Decision] = deque()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer-notify", daemon=True)

    def add(self, decision: Decision, _: Candidate | None = None) -> None:
        """A trace was decided; costs the caller nothing."""
        self._arrived.append(decision)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What no webhook has taken is sent after the next start."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=_STOP_WAIT_S)

    def tick(self) -> None:
        """Count what was decided, let the rules see it, and send what they say."""
        now = self._clock.monotonic()
        for _ in range(len(self._arrived)):
            decision = self._arrived.popleft()
            for watch in self._watches:
                watch.add(decision, now)
        values = {_watched(watch.rule): self._seen(watch, now) for watch in self._watches}
        at = self._clock.now_ns() / 1e9
        events = [event for book in self._books.values() for event in book.observe(values, at)]
        if events:
            self._save()
        if now >= self._retry_at:
            self._deliver(now)

    def _seen(self, watch: _Watch, now: float) -> float | None:
        """A rule's value; while the window since the start is not full, only one that is too high says anything."""
        value = watch.value(now)
        full = now - self._started >= watch.rule.window
        if value is None or full:
            return value
        return value if watch.rule.compare in (">", ">=") and _alert(watch.rule).breached(value) else None

    def _deliver(self, now: float) -> None:
        failed = False
        for name, book in self._books.items():
            if not book.undelivered:
                continue
            lost = len(book.undelivered) - _MAX_UNDELIVERED
            if lost > 0:
                del book.undelivered[:lost]
                self._metrics.notifications.labels(name, "lost").inc(lost)
            before = len(book.undelivered)
            try:
                book.deliver(lambda event, name=name: self._webhooks[name](self._told(event)))
            except WebhookError as error:
                failed = True
                log.warning("%s: %s; it is sent again", name, error)
                self._metrics.notifications.labels(name, "failed").inc()
            self._metrics.notifications.labels(name, "sent").inc(before - len(book.undelivered))
            self._save()
        self._failed = self._failed + 1 if failed else 0
        self._retry_at = now + min(_MAX_WAIT_S, 2.0**self._failed) if failed else now

    def _told(self, event: AlertEvent) -> AlertEvent:
        """The event with the last trace that it is about."""
        example = next(watch.example for watch in self._watches if watch.rule.name == event.rule)
        if example is None or event.status == "resolved":
            return event
        score = "" if example.p_wrong is None else f", p_wrong {example.p_wrong:.2f}"
        where = self._trace_url.format(trace_id=example.trace_id) if self._trace_url else example.trace_id
        parts = (event.message, f"last: {example.project}{score}: {where}")
        return replace(event, message="; ".join(part for part in parts if part))

    def _save(self) -> None:
        states = {name: book.to_json() for name, book in self._books.items()}
        write_whole(self._file, json.dumps(states).encode())

    def _run(self) -> None:
        while not self._stop.wait(_TICK_S):
            try:
                self.tick()
            except Exception:  # a full disk must not end all notifying
                log.exception("cannot notify; trying again")


def _watched(rule: NotifyRule) -> str:
    """What a rule looks at, in words that tell two rules apart."""
    where = f" in {rule.project}" if rule.project else ""
    return f"{rule.aggregate} of {rule.metric} over {format_duration(rule.window)}{where}"


def _alert(rule: NotifyRule) -> AlertRule:
    """The rule as the alerts module knows it: windows are counted here."""
    return AlertRule(
        rule.name,
        _watched(rule),
        rule.threshold,
        compare=rule.compare,
        aggregate="last",
        resolve_after=rule.resolve_after,
        resolve_threshold=rule.resolve_threshold,
        severity=rule.severity,
        message=rule.message,
    )
