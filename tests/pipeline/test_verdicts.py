"""One verdict per trace from people's annotations; verdicts beat gold labels; a draw that can be estimated from."""

import pytest

from observer_core.traces.trace import Trace
from observer_pipeline.verdicts import draw_review, label_traces, merge_annotations

FIRST, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def row(label, *, by="ann", at=FIRST, trace="t", kind="HUMAN", name="correctness", target="span"):
    return {
        "id": f"{target}-{by}-{at}", "target": target, "trace_id": trace, "name": name, "label": label,
        "annotator_kind": kind, "annotator": by, "source": "APP", "created_at": at, "updated_at": at,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        pytest.param([row("wrong")], "wrong", id="one person"),
        pytest.param([row("wrong"), row("correct", at=LATER)], "correct", id="the latest of one person"),
        pytest.param([row("correct", at=LATER), row("wrong")], "correct", id="whatever the order of rows"),
        pytest.param(
            [row("wrong"), row("correct", at=LATER, target="trace")], "correct", id="span and trace are one subject"
        ),
        pytest.param([row("wrong"), row("correct", by="bob"), row("wrong", by="cy")], "wrong", id="majority"),
        pytest.param([row("wrong"), row("correct", by="bob")], None, id="a tie"),
        pytest.param(
            [row("wrong"), row("partial", by="bob"), row("correct", by="cy")], None, id="three ways"
        ),
        pytest.param(
            [row("wrong"), row("wrong", by="bob"), row("correct", at=LATER), row("correct", by="cy")],
            "correct",
            id="a changed mind counts once",
        ),
        pytest.param([row("correct", kind="CODE")], None, id="a program is no person"),
        pytest.param([row("looks fine")], None, id="a label outside the scheme"),
        pytest.param([row(None)], None, id="no label"),
        pytest.param([row("wrong", name="helpfulness")], None, id="another annotation"),
    ],
)  # fmt: skip
def test_verdict(rows, verdict):
    found = merge_annotations(rows).verdicts.get("t")
    assert (found.label if found else None) == verdict


def test_ties_are_told_apart_from_no_verdict():
    merged = merge_annotations([row("wrong"), row("correct", by="bob"), row("looks fine", trace="u")])
    assert merged.ties == ["t"]


def trace(trace_id):
    return Trace(question=f"q {trace_id}", final_answer="a", trace_id=trace_id)


def test_a_verdict_beats_a_gold_label_and_brings_its_probabilities():
    gold = {"t": {"em": True, "f1": 1.0, "label": "correct"}, "u": {"em": False, "f1": 0.0, "label": "wrong"}}
    verdicts = merge_annotations([row("wrong"), row("partial", trace="live"), row("wrong", trace="unknown")]).verdicts
    labeled = label_traces(
        [trace("t"), trace("u"), trace("without gold")],
        gold,
        [trace("live"), trace("nobody looked")],
        verdicts,
        keep_probability={"live": 0.1},
        review_probability={"live": 0.5},
    )
    by_id = {t.trace_id: t for t in labeled}
    assert {key: (t.label, t.label_source) for key, t in by_id.items()} == {
        "t": ("wrong", "annotation"),
        "u": ("wrong", "gold"),
        "live": ("partial", "annotation"),
    }
    assert by_id["live"].weight == pytest.approx(20.0)
    assert by_id["t"].weight == 1.0


def test_the_draw_has_the_probability_it_records():
    ids = [f"{i:032x}" for i in range(5000)]
    drawn = draw_review(ids, size=500, hidden_share=0.2, key=b"night 1")
    assert {d.review_probability for d in drawn} == {0.1}
    assert 420 < len(drawn) < 580  # five standard deviations
    assert 60 < sum(d.score_hidden for d in drawn) < 140
    assert [d.trace_id for d in draw_review(ids, size=500, hidden_share=0.2, key=b"night 1")] == [
        d.trace_id for d in drawn
    ]
    assert len(draw_review(ids[:30], size=500, hidden_share=0.0, key=b"k")) == 30
