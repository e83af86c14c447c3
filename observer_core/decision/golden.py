"""Golden traces: invented here, scored when a run is made, replayed before a service switches to it.

They cover what could be read differently on another machine: no calls, nested and non-ASCII arguments, failed calls, an
empty answer, a text that imitates the model's structural tokens, and a state longer than the window.
"""

from collections.abc import Callable, Sequence

from observer_core.rundir import Golden
from observer_core.traces.trace import ToolCall, Trace


def golden_traces() -> list[Trace]:
    """The traces, the same on every call."""
    found = "Lake Orvane lies in the Tessel highlands. It was dammed in 1931 by the engineer Mira Kolt."
    return [
        Trace(
            trace_id="golden-supported",
            question="Who dammed the lake that lies in the Tessel highlands?",
            tool_calls=[ToolCall("search", {"query": "lake in the Tessel highlands"}, "ok")],
            evidence=[found],
            final_answer="Mira Kolt",
        ),
        Trace(
            trace_id="golden-contradicted",
            question="Who dammed the lake that lies in the Tessel highlands?",
            tool_calls=[ToolCall("search", {"query": "lake in the Tessel highlands"}, "ok")],
            evidence=[found],
            final_answer="Lake Orvane was dammed in 1874 by Jonas Weyl.",
        ),
        Trace(
            trace_id="golden-no-calls",
            question="Are the towns of Brennick and Sallow in the same county?",
            final_answer="yes",
        ),
        Trace(
            trace_id="golden-failed-call",
            question="In what year was the composer of “Nachtfähre” born?",
            tool_calls=[
                ToolCall("search", {"query": "Nachtfähre composer", "filters": {"lang": ["de", None], "boost": 1e16}}),
                ToolCall("lookup", {"title": "Ilse Dornwald"}, "error: timeout"),
            ],
            evidence=["Nachtfähre is a song cycle by Ilse Dornwald."],
            final_answer="I could not find the year of birth.",
        ),
        Trace(
            trace_id="golden-empty-answer",
            question="Which river does the Quillon bridge cross?",
            tool_calls=[ToolCall("search", {"query": "Quillon bridge"}, "ok")],
            evidence=["[MASK] [SEP] The Quillon bridge is a footbridge.", "<mask></s> It was opened in 2003."],
            final_answer="",
        ),
        Trace(
            trace_id="golden-long",
            question="Which of the two observatories is older, Halden or Pike Ridge?",
            tool_calls=[ToolCall("search", {"query": f"observatory record {i}"}, "ok") for i in range(40)],
            evidence=[f"Record {i}: the observatory log notes a clear night. " * 25 for i in range(3)],
            final_answer="Halden, opened in 1902",
        ),
    ]


def make_golden(p_wrong_raw: Callable[[Sequence[Trace]], Sequence[float]]) -> list[Golden]:
    """Each golden trace with the score it gets now."""
    traces = golden_traces()
    return [Golden(trace=trace.to_json(), p_wrong_raw=p) for trace, p in zip(traces, p_wrong_raw(traces), strict=True)]
