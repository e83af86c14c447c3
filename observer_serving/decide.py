"""The policy at work: the decision record of a scored trace, with the state a decision needs kept on disk.

Under `serving/`: `hash_key` (made once when the settings give none) and `epochs.jsonl` (every epoch of the review
budget, logged before the first decision under it, so that a restart continues in the same epoch).
"""

import os
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from observer_core.decisions import Decision
from observer_core.files import write_whole
from observer_core.policy import Outcome, Policy, decide, uniform
from observer_core.review_budget import BudgetThreshold, Epoch
from observer_serving.clock import Clock, rfc3339
from observer_serving.score import Scored

HASH_KEY_FILE = "hash_key"
EPOCHS_FILE = "epochs.jsonl"
_TAIL_BYTES = 1 << 20  # a line is about 10 KB


class Decider:
    """Decides under the policy in force; one thread calls `decide`, any may call `preview` and `use`."""

    def __init__(self, folder: Path, policy: Policy, clock: Clock, *, initial_scores: Sequence[float] = ()) -> None:
        self._clock = clock
        self._epochs_file = folder / EPOCHS_FILE
        self._own_key = _own_hash_key(folder / HASH_KEY_FILE)
        self._lock = threading.Lock()
        record = last_record(self._epochs_file)
        self._policy = policy
        self._budget = (
            BudgetThreshold.restore(policy, record)
            if record is not None
            else BudgetThreshold(policy, initial_scores=initial_scores)
        )
        epoch = (record or {}).get("epoch") or {}
        self._logged = (record or {}).get("policy_version"), epoch.get("number")

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def threshold(self) -> float:
        """The threshold that decides now."""
        with self._lock:
            return self._budget.epoch(self._clock.now_ns() / 1e9).threshold

    def use(self, policy: Policy) -> None:
        """Decide by `policy` from the next trace on; the scores seen so far stay."""
        with self._lock:
            self._budget = BudgetThreshold.restore(policy, self._budget.to_json())
            self._policy = policy

    def start_over(self, initial_scores: Sequence[float]) -> None:
        """Forget the scores of the model before: the next epoch starts from the new model's validation scores."""
        with self._lock:
            self._budget = BudgetThreshold(self._policy, initial_scores=initial_scores)
            self._logged = None, None

    def decide(self, scored: Scored) -> Decision:
        """Decide and count the trace into later epochs.

        Raises:
            OSError: a new epoch cannot be logged (disk full); nothing has been decided.
        """
        now_ns = self._clock.now_ns()
        with self._lock:
            epoch = self._budget.epoch(now_ns / 1e9)
            if self._policy.review_budget is not None and self._logged != (self._policy.version, epoch.number):
                _append_line(self._epochs_file, self._budget.to_json() | {"at": rfc3339(now_ns)})
                self._logged = self._policy.version, epoch.number
            outcome = self._outcome(scored, epoch)
            self._budget.observe(outcome, now_ns / 1e9)
            return self._record(scored, outcome, now_ns)

    def preview(self, scored: Scored) -> Decision:
        """What would be decided now; nothing is counted."""
        now_ns = self._clock.now_ns()
        with self._lock:
            return self._record(scored, self._outcome(scored, self._budget.epoch(now_ns / 1e9)), now_ns)

    def _outcome(self, scored: Scored, epoch: Epoch) -> Outcome:
        policy = self._policy
        key = policy.hash_key.get_secret_value().encode() if policy.hash_key else self._own_key
        return decide(
            policy,
            u=uniform(key, scored.candidate.trace_id),
            facts=scored.candidate.facts,
            p_wrong=scored.score.p_wrong if scored.score else None,
            threshold=epoch.threshold,
            at_threshold=epoch.at_threshold,
            thin=epoch.thin,
            unscored=scored.failure or "scorer_failed",
        )

    def _record(self, scored: Scored, outcome: Outcome, now_ns: int) -> Decision:
        candidate, score = scored.candidate, scored.score
        return Decision(
            trace_id=candidate.trace_id,
            decision=outcome.decision,
            reason=outcome.reason,
            p_wrong=outcome.p_wrong,
            p_wrong_raw=score.p_wrong_raw if score else None,
            threshold=outcome.threshold,
            keep_probability=outcome.keep_probability,
            severity=outcome.severity,
            model=scored.model,
            model_version=scored.model_version,
            policy_version=self._policy.version,
            project=candidate.facts.project,
            mode=self._policy.mode,
            would_decide=outcome.would_decide,
            complete_reason=candidate.complete_reason,
            spans=candidate.spans,
            received_at=rfc3339(candidate.received_ns),
            decided_at=rfc3339(now_ns),
            latency_ms=round((self._clock.monotonic() - candidate.completed_at) * 1000, 3),
            state_truncated=score.state_truncated if score else False,
            answers=score.answers if score else {},
        )


def _own_hash_key(file: Path) -> bytes:
    """The key in `file`, made there first when there is none: without it nobody can tell which ids are kept."""
    if not file.exists():
        write_whole(file, secrets.token_hex(32).encode())
        file.chmod(0o600)
    return file.read_bytes().strip()


def _append_line(file: Path, record: dict[str, Any]) -> None:
    with file.open("ab") as stream:
        stream.write(orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
        stream.flush()
        os.fsync(stream.fileno())


def last_record(file: Path) -> dict[str, Any] | None:
    """The last whole line of a log of JSON lines; a torn one at the end (power cut) is passed over."""
    if not file.exists():
        return None
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        lines = stream.read().split(b"\n")
    for line in reversed(lines):
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
    return None
