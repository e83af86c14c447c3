"""Notes from the live service to a real local webhook: high severity, evaluators, resolving, outages, restarts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from export.export_items import DECISION
from serving.harness import Service, wait_until
from webhook import Hook, running_hook

from observer_core.decisions import Decision
from observer_serving.clock import ManualClock
from observer_serving.config import NotifySettings
from observer_serving.metrics import Metrics
from observer_serving.notify import Notifier


@pytest.fixture
def hook() -> Iterator[Hook]:
    with running_hook() as server:
        yield server


def decision(**fields: Any) -> Decision:
    return Decision(**(DECISION.to_json() | fields))


HIGH, CALM = decision(severity="high", p_wrong=0.93), decision(severity="none", p_wrong=0.1)


class Desk:
    """A notifier whose clock the test moves."""

    def __init__(self, folder: Path, hooks: dict[str, str], rules: list[dict] | None = None) -> None:
        given = {"webhooks": hooks} | ({"rules": rules} if rules else {})
        self.settings = NotifySettings.model_validate(given)
        self.folder, self.clock, self.metrics = folder, ManualClock(), Metrics()
        self.open()

    def open(self) -> None:
        self.notifier = Notifier(
            self.settings, self.folder, self.clock, self.metrics, trace_url="http://phoenix/redirects/traces/{trace_id}"
        )

    def see(self, *decisions: Decision, seconds: float = 1) -> None:
        for one in decisions:
            self.notifier.add(one)
        self.notifier.tick()
        self.clock.advance(seconds)


def texts(hook: Hook) -> list[str]:
    return [body["text"] for body in hook.taken]


def test_a_high_severity_keep_is_told_once_with_its_trace_and_resolves(tmp_path: Path, hook: Hook):
    desk = Desk(tmp_path, {"slack": hook.url})
    desk.see(CALM, CALM)
    assert texts(hook) == []
    desk.see(HIGH, HIGH, CALM)
    desk.see(HIGH)
    (text,) = texts(hook)
    assert text.startswith("[FIRING] high severity: sum of high_severity over 10m is 2 ")
    assert f"p_wrong 0.93: http://phoenix/redirects/traces/{HIGH.trace_id}" in text
    desk.see(CALM, seconds=580)
    desk.see(CALM)
    assert len(texts(hook)) == 1
    desk.see(CALM, seconds=40)
    desk.see(CALM)
    assert texts(hook)[1].startswith("[RESOLVED] high severity")


def test_shares_evaluators_and_projects(tmp_path: Path, hook: Hook):
    rules = [
        {"name": "grounding", "metric": "evaluator.grounded", "aggregate": "mean", "compare": "<", "threshold": 0.5,
         "window": "60s", "min_samples": 4},
        {"name": "scorer", "metric": "scorer_failed", "aggregate": "mean", "threshold": 0.5, "project": "shop"},
    ]  # fmt: skip
    desk = Desk(tmp_path, {"slack": hook.url}, rules)
    desk.see(*[decision(evaluators={"grounded": 1.0}, reason="scorer_failed")] * 10)
    for _ in range(70):
        desk.see(*[decision(evaluators={"grounded": 0.2})] * 2, decision(evaluators={}))
    assert [text.split(":")[0] for text in texts(hook)] == ["[FIRING] grounding"]
    desk.see(decision(reason="scorer_failed", project="shop"))
    assert texts(hook)[1].startswith("[FIRING] scorer")


def test_a_webhook_that_is_down_gets_it_later_and_the_other_one_at_once(tmp_path: Path, hook: Hook):
    desk = Desk(tmp_path, {"slack": hook.url, "down": "http://127.0.0.1:9/"})
    desk.see(HIGH)
    desk.see(CALM)
    assert len(texts(hook)) == 1
    stored = json.loads((tmp_path / "notify.json").read_text())
    assert {name: len(json.loads(book)["undelivered"]) for name, book in stored.items()} == {"slack": 0, "down": 1}
    desk.settings = NotifySettings.model_validate({"webhooks": {"slack": hook.url, "down": hook.url}})
    desk.open()  # a restart, and the address was mended
    desk.see(CALM)
    assert len(texts(hook)) == 2
    assert all("[FIRING]" in text for text in texts(hook)), "a restart forgets the window and does not resolve by that"
    desk.see(CALM, seconds=700)
    desk.see(CALM)
    assert [text.split("]")[0] for text in texts(hook)[2:]] == ["[RESOLVED", "[RESOLVED"]


def test_from_the_live_service(service, hook: Hook):
    live: Service = service(
        policy={"keep_threshold": 0.0, "severity_high": 0.0}, notify={"webhooks": {"slack": hook.url}},
        exporters=[{"name": "phoenix", "endpoint": "http://127.0.0.1:9/v1/traces", "project": "p"}],
    )  # fmt: skip
    trace_id = live.post_trace({"question": "q", "final_answer": "a"})
    wait_until(lambda: bool(hook.taken))
    assert f"http://127.0.0.1:9/redirects/traces/{trace_id}" in texts(hook)[0]
