"""Baselines that must fail: the label guessed from the look of one part of a trace, without relating it to the rest."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from observer_core.traces.labels import normalise_answer
from observer_core.traces.trace import ABSENT, Trace
from observer_pipeline.agent.quality.guessing import Guess, guess

LIMIT = 0.55
"""An AUROC above this calls a part of the trace guessable; of 2,000 traces chance alone reaches 0.53. Real agents have
such parts too: refusals are wrong."""


PARTS = ("question", "answer", "answer, given", "evidence", "lengths", "lengths, alike", "calls")
MAY_TELL = ("answer", "lengths", "calls")
"""Parts that may give the label away, as they do in life: refusals are wrong, and so is more often what took many calls
or failed ones; the number of evidence items shows the calls too."""
_ADMISSIONS = (
    "i could not", "i cannot", "i can not", "i do not know", "unable", "unknown", "not found", "no information",
)  # fmt: skip


Told = Callable[[str], None]
"""Is told what is being looked at, for a progress line."""


def surface_baselines(traces: Sequence[Trace], told: Told = lambda _: None) -> dict[str, Guess]:
    """How well the label (wrong or not) is guessed from each part alone.

    `question`, `answer`, `evidence`: the words (of the answer the letters) of that part; `lengths`: of the three;
    `calls`: how many calls, and how many failed. `answer, given`: among answers that are neither empty nor admissions;
    `lengths, alike`: among these, compared with traces of as many calls and failed calls. What is in `MAY_TELL` may
    tell.
    """
    target = np.array([trace.is_wrong for trace in traces], dtype=bool)
    groups = [trace.question for trace in traces]
    given = [i for i, trace in enumerate(traces) if not is_admission(trace)]
    some = [traces[i] for i in given]
    some_groups = [trace.question for trace in some]
    answers = [trace.final_answer for trace in traces]
    alike = [(len(t.tool_calls), _failed(t)) for t in some]
    parts: dict[str, Callable[[], Guess]] = {
        "question": lambda: guess(_words([t.question for t in traces]), target, groups),
        "answer": lambda: guess(_letters(answers), target, groups),
        "answer, given": lambda: guess(_letters([t.final_answer for t in some]), target[given], some_groups),
        "evidence": lambda: guess(_words(["\n".join(t.evidence) for t in traces]), target, groups),
        "lengths": lambda: guess(np.array([_lengths(t) for t in traces]), target, groups, trees=True),
        "lengths, alike": lambda: guess(
            np.array([_lengths(t) for t in some]), target[given], some_groups, equal=alike, trees=True
        ),
        "calls": lambda: guess(np.array([_calls(t) for t in traces]), target, groups, trees=True),
    }
    found = {}
    for name, work in parts.items():
        told(f"guessing the label: from {name}")
        found[name] = work()
    return found


def is_admission(trace: Trace) -> bool:
    """Whether the answer is none: empty, or says that nothing was found."""
    answer = normalise_answer(str(trace.extra.get("cleaned_answer", trace.final_answer)))
    return not answer or answer.startswith(_ADMISSIONS)


def _words(texts: Sequence[str]) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(ngram_range=(1, 2), min_df=3, max_features=20_000).fit_transform(texts)


def _letters(texts: Sequence[str]) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), min_df=3, max_features=20_000)
    return letters.fit_transform([text or "∅" for text in texts])


def _lengths(trace: Trace) -> list[float]:
    evidence = "\n".join(trace.evidence)
    return [
        len(trace.question), len(trace.question.split()), len(trace.final_answer), len(trace.final_answer.split()),
        len(evidence), len(evidence.split()), len(trace.evidence),
    ]  # fmt: skip


def _calls(trace: Trace) -> list[float]:
    distinct = len({(call.name, repr(call.args)) for call in trace.tool_calls})
    return [len(trace.tool_calls), _failed(trace), distinct, float(trace.steps or 0)]


def _failed(trace: Trace) -> int:
    return sum(call.status not in (ABSENT, "ok") for call in trace.tool_calls)
