"""Alert rules fire once, resolve by themselves, and reach a real local webhook."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from webhook import Hook, running_hook

from observer_core.alerts import AlertBook, AlertRule, Webhook, WebhookError
from observer_core.errors import InputError
from observer_core.rollouts.features import extract
from observer_core.rollouts.monitor import DEFAULT_RULES, step_metrics
from observer_core.rollouts.reading import RolloutLog
from observer_core.rollouts.story import story_log

RULE = AlertRule("parse failures", "failed", 0.2, window=3, message="see the collapse runbook")


@pytest.fixture
def hook() -> Iterator[Hook]:
    with running_hook() as server:
        yield server


def run(book: AlertBook, values: list[float | None], start: int = 0) -> list[tuple[int, str]]:
    return [(at, e.status) for at, v in enumerate(values, start) for e in book.observe({"failed": v}, at)]


def test_it_fires_once_and_resolves_by_itself():
    book = AlertBook([RULE])
    assert run(book, [0, 0, 0.9, 0.9, 0.9, 0, 0, 0, 0]) == [(2, "firing"), (7, "resolved")]
    assert book.firing == []


def test_the_state_survives_a_restart():
    book = AlertBook([RULE])
    run(book, [0, 0, 0.9])
    again = AlertBook([RULE], book.to_json())
    assert again.firing == ["parse failures"]
    assert run(again, [0.9, 0, 0, 0], start=3) == [(6, "resolved")]


def test_hysteresis_waiting_and_minimum_samples_keep_it_from_flapping():
    rule = AlertRule("r", "failed", 0.5, resolve_threshold=0.3, resolve_after=2)
    assert run(AlertBook([rule]), [0.6, 0.4, 0.6, 0.2, 0.4, 0.2, 0.2, 0.2]) == [(0, "firing"), (7, "resolved")]
    rule = AlertRule("r", "failed", 0.5, window=5, min_samples=3)
    assert run(AlertBook([rule]), [0.9, 0.9, None, 0.9]) == [(3, "firing")]
    below = AlertRule("r", "failed", 0.1, compare="<")
    assert run(AlertBook([below]), [0.2, 0.0, 0.2]) == [(1, "firing"), (2, "resolved")]


def test_a_bad_rule_is_refused():
    with pytest.raises(InputError, match="compare with"):
        AlertRule("r", "m", 1, compare="!=")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="names must differ"):
        AlertBook([RULE, RULE])


def test_events_reach_the_webhook_and_wait_when_it_does_not_answer(hook: Hook):
    slept: list[float] = []
    send = Webhook(hook.url, retries=1, sleep=slept.append)
    book = AlertBook([RULE])
    run(book, [0, 0, 0.9])
    hook.script = [500, 503]
    with pytest.raises(WebhookError, match="HTTP 503"):
        book.deliver(send)
    assert slept == [0.5]
    book = AlertBook([RULE], book.to_json())
    run(book, [0, 0, 0], start=3)
    assert book.deliver(send) == 2
    firing, resolved = hook.taken
    assert firing["text"] == "[FIRING] parse failures: failed is 0.3 (alert > 0.2): see the collapse runbook"
    assert resolved["text"].startswith("[RESOLVED] parse failures: failed is 0 ")
    assert firing["attachments"][0]["color"] != resolved["attachments"][0]["color"]
    assert book.deliver(send) == 0


def test_the_collapse_of_the_seed_run_fires_and_resolves(hook: Hook, tmp_path: Path):
    pq.write_table(story_log(7).table, tmp_path / "log.parquet")
    book = AlertBook(DEFAULT_RULES)
    events = [
        event
        for step, metrics in step_metrics(extract(RolloutLog(tmp_path / "log.parquet")))
        for event in book.observe(metrics, step)
    ]
    assert [event.status for event in events] == ["firing", "resolved"]
    assert 18 <= events[0].at <= 20
    assert 28 <= events[1].at <= 31
    assert book.deliver(Webhook(hook.url)) == 2
    firing, resolved = (body["text"] for body in hook.taken)
    assert firing.startswith("[FIRING] completions cannot be read: parse_failure_share is ")
    assert resolved.startswith("[RESOLVED] completions cannot be read")
