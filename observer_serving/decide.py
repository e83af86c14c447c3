"""The policy at work: the decision record of a scored trace, with the state a decision needs kept on disk.

Under `serving/`: `hash_key` (made once when the settings give none) and `epochs.jsonl` (every epoch of the review
budget, logged before the first decision under it, so that a restart continues in the same epoch); a project with a
policy of its own has a budget of its own and `epochs-<project>.jsonl`.
"""

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from observer_core.decisions import Decision
from observer_core.files import write_whole
from observer_core.policy import Outcome, Policy, decide, uniform
from observer_core.review_budget import BudgetThreshold, Epoch
from observer_serving.clock import Clock, rfc3339
from observer_serving.config import SERVICE
from observer_serving.epochs import EpochLog, FileEpochs
from observer_serving.score import Scored

HASH_KEY_FILE = "hash_key"
_MAX_PROJECT = 1000
"""Characters of a project's name in a record, which has to stay small; the spans are not changed."""


class _Budget:
    """One policy, its threshold and the log of its epochs."""

    def __init__(self, log: EpochLog, policy: Policy, initial_scores: Sequence[float]) -> None:
        self.policy = policy
        self._log = log
        record = log.last()
        self._threshold = (
            BudgetThreshold.restore(policy, record)
            if record is not None
            else BudgetThreshold(policy, initial_scores=initial_scores)
        )
        self._is_new = record is None
        epoch = (record or {}).get("epoch") or {}
        self._logged = (record or {}).get("policy_version"), epoch.get("number")

    def use(self, policy: Policy) -> None:
        self._threshold = BudgetThreshold.restore(policy, self._threshold.to_json())
        self.policy = policy

    def begin(self, initial_scores: Sequence[float]) -> None:
        if self._is_new:
            self.start_over(initial_scores)

    def start_over(self, initial_scores: Sequence[float]) -> None:
        self._threshold = BudgetThreshold(self.policy, initial_scores=initial_scores)
        self._logged = None, None

    def epoch(self, now_ns: int) -> Epoch:
        return self._threshold.epoch(now_ns / 1e9)

    def logged_epoch(self, now_ns: int) -> Epoch:
        """The epoch that decides now, written down before it does; replicas agree on it."""
        epoch = self.epoch(now_ns)
        if self.policy.review_budget is not None and self._logged != (self.policy.version, epoch.number):
            agreed = self._log.agree(self._threshold.to_json() | {"at": rfc3339(now_ns)})
            epoch = Epoch(**agreed["epoch"])
            self._threshold.adopt(epoch)
            self._logged = self.policy.version, epoch.number
        return epoch

    def observe(self, outcome: Outcome, now_ns: int) -> None:
        self._threshold.observe(outcome, now_ns / 1e9)


class Decider:
    """Decides under the policies in force; one thread calls `decide`, any may call `preview` and `use`.

    Args:
        policies: scope (a project's name, or the service) → its policy; the service's is always among them.
        initial_scores: scope → validation scores of the model that serves it.
        own_key: the hash key where the settings give none; made once and kept in `folder` when absent.
        epochs: scope → the log of its epochs; files in `folder` when absent.
    """

    def __init__(
        self,
        folder: Path,
        policies: Mapping[str, Policy],
        clock: Clock,
        *,
        initial_scores: Mapping[str, Sequence[float]] | None = None,
        own_key: bytes | None = None,
        epochs: Callable[[str], EpochLog] | None = None,
    ) -> None:
        self._clock = clock
        self._own_key = own_key or _own_hash_key(folder / HASH_KEY_FILE)
        log_of = epochs or partial(FileEpochs.of, folder)
        self._lock = threading.Lock()
        scores = initial_scores or {}
        self._budgets = {
            scope: _Budget(log_of(scope), policy, scores.get(scope, scores.get(SERVICE, ())))
            for scope, policy in policies.items()
        }

    def begin(self, initial_scores: Mapping[str, Sequence[float]]) -> None:
        """Take the validation scores of models that were loaded after this was made, before the first decision: the
        first epoch starts from them where no epoch is on record (see `initial_scores`)."""
        with self._lock:
            for scope, budget in self._budgets.items():
                budget.begin(initial_scores.get(scope, initial_scores.get(SERVICE, ())))

    def policy(self, scope: str = SERVICE) -> Policy:
        """The policy that decides a project's traces."""
        return self._budget(scope).policy

    def threshold(self, scope: str = SERVICE) -> float:
        """The threshold that decides a project's traces now."""
        with self._lock:
            return self._budget(scope).epoch(self._clock.now_ns()).threshold

    def use(self, policy: Policy, scope: str = SERVICE) -> None:
        """Decide by `policy` from the next trace on; the scores seen so far stay."""
        with self._lock:
            self._budgets[scope].use(policy)

    def start_over(self, initial_scores: Sequence[float], scope: str = SERVICE) -> None:
        """Forget the scores of the model before: the next epoch starts from the new model's validation scores.

        A project that shares the service's policy shares its budget, which one model among several does not reset.
        """
        with self._lock:
            if scope in self._budgets:
                self._budgets[scope].start_over(initial_scores)

    def decide(self, scored: Scored) -> Decision:
        """Decide and count the trace into later epochs.

        Raises:
            OSError: a new epoch cannot be logged (disk full); nothing has been decided.
        """
        now_ns = self._clock.now_ns()
        with self._lock:
            budget = self._budget(scored.candidate.facts.project)
            outcome = self._outcome(scored, budget.policy, budget.logged_epoch(now_ns))
            budget.observe(outcome, now_ns)
            return self._record(scored, budget.policy, outcome, now_ns)

    def preview(self, scored: Scored) -> Decision:
        """What would be decided now; nothing is counted."""
        now_ns = self._clock.now_ns()
        with self._lock:
            budget = self._budget(scored.candidate.facts.project)
            outcome = self._outcome(scored, budget.policy, budget.epoch(now_ns))
            return self._record(scored, budget.policy, outcome, now_ns)

    def hash_key(self, policy: Policy) -> bytes:
        """The key of the hash under a policy: its own, the service's, or the one made here."""
        given = policy.hash_key or self._budgets[SERVICE].policy.hash_key
        return given.get_secret_value().encode() if given else self._own_key

    def _budget(self, scope: str) -> _Budget:
        return self._budgets.get(scope) or self._budgets[SERVICE]

    def _outcome(self, scored: Scored, policy: Policy, epoch: Epoch) -> Outcome:
        return decide(
            policy,
            u=uniform(self.hash_key(policy), scored.candidate.trace_id),
            facts=replace(scored.candidate.facts, evaluators=scored.evaluators),
            p_wrong=scored.score.p_wrong if scored.score else None,
            threshold=epoch.threshold,
            at_threshold=epoch.at_threshold,
            thin=epoch.thin,
            unscored=scored.failure or "scorer_failed",
        )

    def _record(self, scored: Scored, policy: Policy, outcome: Outcome, now_ns: int) -> Decision:
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
            policy_version=policy.version,
            project=candidate.facts.project[:_MAX_PROJECT],
            mode=policy.mode,
            would_decide=outcome.would_decide,
            complete_reason=candidate.complete_reason,
            spans=candidate.spans,
            received_at=rfc3339(candidate.received_ns),
            decided_at=rfc3339(now_ns),
            latency_ms=round((self._clock.monotonic() - candidate.completed_at) * 1000, 3),
            state_truncated=score.state_truncated if score else False,
            answers=score.answers if score else {},
            shadow=scored.shadow,
            evaluators=scored.evaluators,
        )


def hash_key_of(folder: Path, policy: Policy) -> bytes:
    """The key that decided in a state folder under a policy that may name its own."""
    if policy.hash_key is not None:
        return policy.hash_key.get_secret_value().encode()
    return _own_hash_key(folder / HASH_KEY_FILE)


def _own_hash_key(file: Path) -> bytes:
    """The key in `file`, made there first when there is none: without it nobody can tell which ids are kept."""
    if not file.exists():
        write_whole(file, secrets.token_hex(32).encode())
        file.chmod(0o600)
    return file.read_bytes().strip()
