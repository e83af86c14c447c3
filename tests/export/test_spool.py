"""Sealed files of the spool."""

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from export_items import DECISION

from observer_core.decisions import decision_row
from observer_core.errors import ObserverError
from observer_core.spool_tables import DECISION_SCHEMA, EXPORT_SCHEMA, TRACE_SCHEMA
from observer_core.traces.jsonl import parse_trace
from observer_core.traces.trace import ToolCall, Trace
from observer_serving.spool import Spool

TRACE = Trace("q", "a", trace_id="ab" * 16, tool_calls=[ToolCall("search", {"n": 10**30, "t": "é"}, "ok", "…")])


def _files(tmp_path, table):
    return sorted((tmp_path / table).glob("*.parquet"))


def test_rows_come_back_as_they_were(tmp_path):
    spool = Spool(tmp_path, max_rows=100, max_age_s=60)
    unscored = replace(DECISION, p_wrong=None, p_wrong_raw=None, threshold=None)
    spool.add_decision(DECISION, TRACE, root_span_id="cd" * 8)
    spool.add_decision(unscored)
    spool.add_export(trace_id="ab", exporter="phoenix", outcome="exported", spans=3, at="2026-11-30T00:00:00Z")
    assert _files(tmp_path, "decisions") == []
    spool.flush()
    [decisions], [traces], [exports] = (_files(tmp_path, table) for table in ("decisions", "traces", "exports"))
    table = pq.read_table(decisions)
    assert table.schema.equals(DECISION_SCHEMA)
    assert table.to_pylist() == [decision_row(DECISION), decision_row(unscored)]
    assert pq.read_schema(traces).equals(TRACE_SCHEMA)
    [row] = pq.read_table(traces).to_pylist()
    assert parse_trace(row["trace"]) == TRACE
    assert (row["trace_id"], row["root_span_id"], row["project"]) == (DECISION.trace_id, "cd" * 8, "agent")
    assert pq.read_schema(exports).equals(EXPORT_SCHEMA)
    spool.flush()  # nothing new, no empty files
    assert [len(_files(tmp_path, table)) for table in ("decisions", "traces", "exports")] == [1, 1, 1]


def test_files_are_sealed_by_rows_and_by_age(tmp_path):
    now = 0.0
    spool = Spool(tmp_path, max_rows=3, max_age_s=10, monotonic=lambda: now)
    for n in range(7):
        spool.add_decision(replace(DECISION, trace_id=str(n)))
    assert spool.waiting == 1
    now = 9.9
    spool.seal_due()
    assert spool.waiting == 1
    now = 10.0
    spool.seal_due()
    assert spool.waiting == 0
    names = _files(tmp_path, "decisions")
    assert [pq.read_table(path)["trace_id"].to_pylist() for path in names] == [["0", "1", "2"], ["3", "4", "5"], ["6"]]


def test_a_refused_file_keeps_its_rows_and_leaves_no_half(tmp_path):
    blocker = tmp_path / "decisions"
    blocker.write_text("in the way")
    spool = Spool(tmp_path, max_rows=100, max_age_s=60)
    spool.add_decision(DECISION)
    with pytest.raises(ObserverError, match="cannot write"):
        spool.flush()
    assert spool.waiting == 1
    blocker.unlink()
    spool.flush()
    assert [pq.read_table(path).num_rows for path in _files(tmp_path, "decisions")] == [1]
    assert [path.name for path in (tmp_path / "decisions").iterdir() if not path.name.endswith(".parquet")] == []
    assert json.loads(pq.read_table(_files(tmp_path, "decisions")[0])["answers"][0].as_py()) == DECISION.answers


def test_a_row_that_met_a_refused_file_is_in_one_file_once(tmp_path):
    blocker = tmp_path / "decisions"
    blocker.write_text("in the way")
    spool = Spool(tmp_path, max_rows=2, max_age_s=60)
    rows = [replace(DECISION, trace_id=str(n)) for n in range(5)]
    refused = 0
    for row in rows:
        while True:  # as the delivery does, which comes back with what was refused
            try:
                spool.add_decision(row, TRACE)
                break
            except ObserverError:
                refused += 1
                blocker.unlink(missing_ok=refused > 1)
    spool.flush()
    assert refused == 1
    for table in ("decisions", "traces"):
        found = [i for path in _files(tmp_path, table) for i in pq.read_table(path)["trace_id"].to_pylist()]
        assert found == [row.trace_id for row in rows], table


def test_a_row_that_does_not_fit_keeps_no_other_from_the_disk(tmp_path, caplog):
    spool = Spool(tmp_path, max_rows=100, max_age_s=60)
    odd = [{"spans": 2**70}, {"decision": 3}, {"project": "\ud800"}]
    for number, change in enumerate(odd):
        spool.add_decision(replace(DECISION, trace_id=f"odd{number}", **change))
        spool.add_decision(replace(DECISION, trace_id=f"fine{number}"))
    spool.flush()
    [file] = _files(tmp_path, "decisions")
    assert pq.read_table(file)["trace_id"].to_pylist() == ["fine0", "fine1", "fine2"]
    assert spool.waiting == 0
    assert [record.getMessage().split()[6] for record in caplog.records] == ["odd0", "odd1", "odd2"]
