"""Every format is read into the same columns; what is broken is named and counted, the rest is read."""

import json
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from observer_core.errors import InputError
from observer_core.rollouts.columns import Columns
from observer_core.rollouts.reading import RolloutLog


def rows(log: RolloutLog) -> list[dict]:
    return [row for batch in log.batches() for row in batch.to_pylist()]


def write_jsonl(path: Path, objects: list) -> Path:
    path.write_text("".join((o if isinstance(o, str) else json.dumps(o)) + "\n" for o in objects))
    return path


def test_trl_parquet_with_messages_joined_with_the_data_set(tmp_path: Path):
    folder = tmp_path / "my-run" / "completions"
    folder.mkdir(parents=True)
    for step in (1, 2):
        prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Q{step}"}]
        table = pa.table(
            {
                "step": [step] * 2,
                "prompt": [prompt] * 2,
                "completion": [[{"role": "assistant", "content": f"A{i}"}] for i in range(2)],
                "my_reward": pa.array([0.5, None], pa.float32()),
                "extracted": ["x", "y"],
                "advantage": [0.7, -0.7],
            }
        )
        pq.write_table(table, folder / f"completions_{step:05d}.parquet")
    dataset = write_jsonl(
        tmp_path / "prompts.jsonl",
        [
            {
                "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Q{s}"}],
                "solution": f"G{s}",
            }
            for s in (1, 2)
        ],
    )
    log = RolloutLog(folder, dataset=dataset)
    read = rows(log)
    assert log.run == "my-run"
    assert log.rewards == ("my_reward",)
    assert [(r["row"], r["step"], r["completion"], r["reference"]) for r in read] == [
        (0, 1, "A0", "G1"),
        (1, 1, "A1", "G1"),
        (2, 2, "A0", "G2"),
        (3, 2, "A1", "G2"),
    ]
    assert read[0]["logged.my_reward"] == 0.5
    assert read[1]["logged.my_reward"] is None
    assert json.loads(read[0]["messages"])["completion"] == [{"role": "assistant", "content": "A0"}]
    assert json.loads(read[0]["extra"]) == {"extracted": "x", "solution": "G1"}


def test_verl_and_openrlhf_lines(tmp_path: Path):
    verl = write_jsonl(
        tmp_path / "12.jsonl", [{"input": "Q", "output": "A", "gts": "G", "score": 1, "acc": 0.5, "num_turns": 3}]
    )
    log = RolloutLog(verl)
    (row,) = rows(log)
    assert log.rewards == ("score", "acc")
    assert (row["step"], row["prompt"], row["completion"], row["reference"]) == (12, "Q", "A", "G")
    assert (row["logged.score"], row["logged.acc"]) == (1.0, 0.5)
    openrlhf = write_jsonl(
        tmp_path / "samples.jsonl", [{"global_step": 3, "prompt": "Q", "response": "A", "label": ["G"], "reward": 0.25}]
    )
    (row,) = rows(RolloutLog(openrlhf))
    assert (row["step"], row["completion"], row["reference"], row["logged.reward"]) == (3, "A", "G", 0.25)


def test_any_columns_by_mapping(tmp_path: Path):
    path = write_jsonl(
        tmp_path / "log.jsonl", [{"it": 1, "q": "Q", "out": "A", "r1": 0.1, "why": "length", "tokens": 7}]
    )
    columns = Columns(step="it", prompt="q", completion="out", truncated="why", rewards=("r1",))
    (row,) = rows(RolloutLog(path, columns))
    assert (row["step"], row["completion"], row["logged.r1"], row["truncated"]) == (1, "A", 0.1, True)
    assert json.loads(row["extra"])["tokens"] == 7
    with pytest.raises(InputError, match=r"no column for prompt, completion, step; it has: it, q.*name the columns"):
        RolloutLog(path)


def test_broken_input_is_named_and_counted_and_the_rest_is_read(tmp_path: Path):
    good = {"step": 1, "prompt": "Q", "completion": "A", "quality": 0.5}
    table = pa.Table.from_pylist([good] * 5000)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=500, compression="none", use_dictionary=False)
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b-half.parquet").write_bytes(whole[: len(whole) // 2])
    corrupt = bytearray(whole)
    corrupt[len(whole) // 2 : len(whole) // 2 + 4000] = b"\xff" * 4000
    (tmp_path / "c-corrupt.parquet").write_bytes(bytes(corrupt))
    pq.write_table(pa.table({"step": [1], "prompt": ["Q"]}), tmp_path / "d-missing.parquet")
    pq.write_table(table.slice(0, 0), tmp_path / "e-empty.parquet")
    write_jsonl(
        tmp_path / "f.jsonl",
        [
            good,
            '{"step": 1, "prompt": "Q", "compl',
            "[1]",
            {**good, "quality": "0.25"},
            {**good, "quality": "high"},
            {**good, "step": "two"},
            {**good, "completion": None},
            "",
            {"step": 2, "prompt": "Q", "completion": {"answer": "x"}, "quality": "inf"},
        ],
    )
    log = RolloutLog(tmp_path)
    read = rows(log)
    places = {kind: (log.problems.counts[kind], log.problems.places[kind][0]) for kind in log.problems.counts}
    assert places["unreadable file"][0] == 2
    assert places["unreadable file"][1].startswith("b-half.parquet")
    assert places["file without a needed column"] == (1, "d-missing.parquet has no column for completion")
    assert places["file without rows"] == (1, "e-empty.parquet")
    assert places["line that is not JSON"][1].startswith("f.jsonl:2")
    assert places["line that is not an object"] == (1, "f.jsonl:3")
    assert places["quality that is no number"][0] == 1
    assert places["step that is no number"][0] == 1
    assert places["row without step"][0] == 1
    assert places["row without completion"][0] == 1
    assert places["infinite quality"][0] == 1
    from_jsonl = [r for r in read if r["completion"] != "A" or r["logged.quality"] != 0.5]
    assert [r["logged.quality"] for r in from_jsonl] == [0.25, None, None]
    assert from_jsonl[-1]["completion"] == '{"answer":"x"}'
    assert len(read) >= 5000 + 4
    assert len({r["row"] for r in read}) == len(read)
    assert any("b-half.parquet" in line for line in log.problems.lines())


def test_nothing_readable_is_one_error(tmp_path: Path):
    with pytest.raises(InputError, match="no file or folder"):
        RolloutLog(tmp_path / "absent")
    with pytest.raises(InputError, match="holds no Parquet or JSONL"):
        RolloutLog(tmp_path)
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="nothing readable"):
        RolloutLog(tmp_path)


def test_memory_stays_bounded_while_reading(tmp_path: Path):
    """400 MB of JSONL pass through in a few batches' worth of memory; a 10 MB completion is one row like any other."""
    path = tmp_path / "big.jsonl"
    line = json.dumps({"step": 1, "prompt": "Q", "completion": "x" * 10_000_000, "quality": 0.5}) + "\n"
    with path.open("w") as stream:
        for _ in range(40):
            stream.write(line)
    tracemalloc.start()
    total = pa.total_allocated_bytes()
    seen = 0
    peak_arrow = 0
    for batch in RolloutLog(path).batches():
        seen += batch.num_rows
        peak_arrow = max(peak_arrow, pa.total_allocated_bytes() - total)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == 40
    assert peak + peak_arrow < 200_000_000
