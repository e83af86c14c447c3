"""Tables are whole at every moment, and nothing stays open."""

import gc
import itertools
import threading
import time

import duckdb
import pyarrow as pa
import pytest

from observer_core.errors import InputError, ObserverError


def test_a_reader_sees_a_part_as_it_was_or_as_it_is(warehouse):
    """Rows of one write all carry the same number; a torn read would mix two."""
    rows = 2000
    warehouse.write("t", pa.table({"x": [0] * rows}))
    enough = threading.Event()

    def write() -> None:
        for i in itertools.count(1):
            if enough.is_set():
                return
            warehouse.write("t", pa.table({"x": [i] * rows}))

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    deadline = time.monotonic() + 60
    try:
        while len(seen) < 10 and time.monotonic() < deadline:
            got = warehouse.query("SELECT min(x) AS lo, max(x) AS hi, count(*) AS n FROM t").to_pylist()[0]
            assert got["lo"] == got["hi"]
            assert got["n"] == rows
            seen.add(got["lo"])
            assert len(set(warehouse.read("t")["x"].to_pylist())) == 1
    finally:
        enough.set()
        writer.join()
    assert len(seen) == 10, "the reader met different versions"


def test_a_failed_write_leaves_the_part_and_no_litter(warehouse, monkeypatch):
    warehouse.write("t", pa.table({"x": [1]}))

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("observer_pipeline.resources.warehouse.pq.write_table", full)
    with pytest.raises(ObserverError, match="No space left"):
        warehouse.write("t", pa.table({"x": [2]}))
    assert warehouse.read("t")["x"].to_pylist() == [1]
    assert [file.name for file in warehouse.folder("t").iterdir()] == ["data.parquet"]


def test_parts_are_rows_of_one_table_and_writing_one_twice_changes_nothing(warehouse):
    warehouse.write("t", pa.table({"x": [1]}), part="a")
    warehouse.write("t", pa.table({"x": [2], "y": ["new column"]}), part="b")
    warehouse.write("t", pa.table({"x": [1]}), part="a")
    assert warehouse.parts("t") == ["a", "b"]
    assert warehouse.read("t").to_pylist() == [{"x": 1, "y": None}, {"x": 2, "y": "new column"}]
    assert warehouse.query("SELECT count(*) AS n FROM t WHERE y = $y", {"y": "new column"}).to_pylist() == [{"n": 1}]


def test_a_query_that_fails_leaves_no_connection_open(warehouse):
    with pytest.raises(duckdb.Error), warehouse.connect() as connection:
        connection.execute("SELECT nothing FROM nowhere")
    gc.collect()
    with pytest.raises(duckdb.ConnectionException):
        connection.execute("SELECT 1")


def test_errors_name_the_table_and_the_mend(warehouse):
    with pytest.raises(InputError, match="no table 'labeled_traces' yet; materialize the asset"):
        warehouse.read("labeled_traces")
    with pytest.raises(InputError, match="no table name"):
        warehouse.write("../t", pa.table({"x": [1]}))
    with pytest.raises(InputError, match="no name for a part"):
        warehouse.write("t", pa.table({"x": [1]}), part="../../x")
