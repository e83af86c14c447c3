"""Cost of a decision in the record as the record grows, and start-up against the imports it cannot avoid.

    python benchmarks/record.py

Per trace: the look-up of a new trace id, the insert, and its share of the transaction and of the indexes that are built
now and then, measured over batches of 64 at 1,000 and at 1,000,000 decisions with scores of all kinds.

Start-up: `observer serve` over a run directory (`--run`, with an exported graph) until it listens, and until its model
is in force too (`/readyz` answers 200), against a process that imports FastAPI, grpc and ONNX Runtime: over an empty
state folder, where all golden traces are replayed, and then over the same folder again. All of them find the bytecode
that a first, unmeasured start has left in a folder of its own: whether Python may keep any elsewhere differs from
machine to machine, and compiling is most of a start without.
"""

import argparse
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil
import yaml

from observer_core.decisions import Decision
from observer_serving.buffer.record import DecisionRecord

BATCH = 64
MEASURED = 8_192
"""Decisions a measurement: some chunks of the record's index, and never more of them at one size than at another."""
DECISION = Decision(
    trace_id="", decision="drop", reason="below_threshold", p_wrong=0.1, p_wrong_raw=0.2, threshold=0.5,
    keep_probability=0.02, severity="none", model="builtin", model_version="builtin-1", policy_version="0" * 12,
    project="p", mode="enforce", would_decide="drop", complete_reason="root_ended", spans=10,
    received_at="2026-01-01T00:00:00.000000Z", decided_at="2026-01-01T00:00:01.000000Z", latency_ms=1.0,
)  # fmt: skip


def fill(record: DecisionRecord, count: int, *, batch: int) -> float:
    """CPU milliseconds a trace for `count` more decisions."""
    span_ids = secrets.token_bytes(80)
    started = time.process_time()
    for _ in range(0, count, batch):
        ids = [secrets.token_bytes(16) for _ in range(batch)]
        record.decided(ids)
        record.add([(replace(DECISION, trace_id=i.hex(), p_wrong=random.random()), span_ids) for i in ids])
    return (time.process_time() - started) * 1000 / count


def growth(most: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        record = DecisionRecord(Path(folder) / "decisions.sqlite")
        fill(record, 1_000, batch=BATCH)
        few = min(fill(record, MEASURED, batch=BATCH) for _ in range(3))
        record._db.execute("PRAGMA synchronous = OFF")  # only to get there sooner
        fill(record, most, batch=5_000)
        record._db.execute("PRAGMA synchronous = FULL")
        many = min(fill(record, MEASURED, batch=BATCH) for _ in range(3))
        record.close()
    print(f"at 1,000 decisions {few:.3f} core-ms a trace, at {most:,} {many:.3f}: ratio {many / few:.2f}")


def start_up(run: Path | None, rounds: int) -> None:
    """Wall and CPU seconds; the CPU ones are what another load on the machine disturbs least."""
    imports = "import fastapi, uvicorn, grpc, grpc.aio, onnxruntime; print('observer listens', flush=True); input()"
    scorer = {"kind": "local", "run": str(run.resolve())} if run else {"kind": "builtin"}
    listen = dict.fromkeys(("api", "otlp_http", "otlp_grpc"), "127.0.0.1:0")
    took: dict[str, list[Took]] = {"bare": [], "first start": [], "restart": []}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "observer.yaml"
        config.write_text(yaml.safe_dump({"listen": listen, "scorer": scorer}))
        serve = [str(Path(sys.executable).with_name("observer")), "serve", "--config", str(config)]
        for number in range(rounds + 1):
            environment = os.environ | {
                "OBSERVER_HOME": f"{folder}/{number}",
                "PYTHONPYCACHEPREFIX": f"{folder}/bytecode",
                "PYTHONDONTWRITEBYTECODE": "",
            }
            for what, ours in took.items():
                ours.append(_start([sys.executable, "-c", imports] if what == "bare" else serve, environment))
    floor = [one.listening for one in took.pop("bare")[1:]]
    for what, ours in took.items():
        _compare(f"start-up, {run or 'builtin'}, {what}: listens", [one.listening for one in ours[1:]], floor)
        _compare(f"start-up, {run or 'builtin'}, {what}: is ready", [one.ready for one in ours[1:]], floor)


def _compare(what: str, ours: list[tuple[float, float]], floor: list[tuple[float, float]]) -> None:
    for place, unit in enumerate(("s", "CPU s")):
        most, least = min(one[place] for one in ours), min(one[place] for one in floor)
        print(f"{what} after {most:.2f} {unit}, bare imports {least:.2f}: {most / least:.2f} (wanted 2)")


class Took(NamedTuple):
    """Wall and CPU seconds until a process listened, and until it was ready."""

    listening: tuple[float, float]
    ready: tuple[float, float]


def _start(command: list[str], environment: dict[str, str]) -> Took:
    started = time.perf_counter()

    def so_far() -> tuple[float, float]:
        used = psutil.Process(process.pid).cpu_times()
        return time.perf_counter() - started, used.user + used.system

    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        listening = so_far()
        assert line.startswith("observer listens"), line
        api = next((part.removeprefix("api=") for part in line.split() if part.startswith("api=")), None)
        while api is not None and not _is_ready(api):
            time.sleep(0.01)
        ready = so_far()
        process.terminate()
    return Took(listening, ready)


def _is_ready(api: str) -> bool:
    try:
        with urllib.request.urlopen(f"{api}/readyz"):
            return True
    except urllib.error.HTTPError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=1_000_000)
    parser.add_argument("--run", type=Path, help="a run directory with an exported graph; without one the built-in")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    start_up(options.run, options.rounds)
    growth(options.decisions)


if __name__ == "__main__":
    main()
