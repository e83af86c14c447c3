"""Benchmarks of training-run telemetry: `python benchmarks/rollouts.py [regrade|rouge|emit|analyze ...]`.

Prints one JSON object per benchmark with wall seconds, CPU seconds and the figure that is promised. On a busy machine
wall times say little; the CPU seconds beside them are the program's own (children included).
"""

import json
import os
import random
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# What is measured is imported where it is used: the grading processes import this script again when they start, as
# they import the light `observer` command in life.

BLOCK = 8000


def make_log(path: Path, rows: int, *, words: int = 120, seed: int = 0) -> None:
    """A log of `rows` completions of about `words` words, eight to a step; texts repeat every `BLOCK` rows."""
    import numpy as np
    import orjson
    import pyarrow as pa
    import pyarrow.parquet as pq

    from observer_core.rewards import builtin_rewards

    rng = random.Random(seed)
    vocabulary = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(3, 9))) for _ in range(3000)]
    tasks = [" ".join(rng.choices(vocabulary, k=words)) for _ in range(100)]
    out = []
    for row in range(min(rows, BLOCK)):
        task = row // 8 % len(tasks)
        answer = tasks[task].split()
        for _ in range(len(answer) // 3):
            answer[rng.randrange(len(answer))] = rng.choice(vocabulary)
        text = {"answer": " ".join(answer), "cited_artifacts": [f"d{task}-0"], "confidence": round(rng.random(), 2)}
        scores = {r.name: float(np.float32(rng.random())) for r in builtin_rewards()}
        out.append(
            {
                "step": row // 8,
                "prompt": f"Question {task}?",
                "completion": orjson.dumps(text).decode(),
                **scores,
                "advantage": rng.gauss(0, 1),
                "task_id": f"task-{task}",
                "reference": tasks[task],
                "citations": [f"d{task}-0"],
            }
        )
    block = pa.Table.from_pylist(out)
    with pq.ParquetWriter(path, block.schema, compression="zstd") as writer:
        for start in range(0, rows, BLOCK):
            steps = pa.array(np.arange(start, start + len(block)) // 8)
            writer.write_table(block.set_column(0, "step", steps).slice(0, rows - start))


def timed(call: Callable[[], object]) -> dict[str, float]:
    """Wall and CPU seconds of a call, children that ended included."""
    before = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    begun = time.perf_counter()
    call()
    wall = time.perf_counter() - begun
    after = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own, children = (a.ru_utime + a.ru_stime - b.ru_utime - b.ru_stime for a, b in zip(after, before, strict=True))
    return {"wall_s": round(wall, 3), "cpu_s": round(own, 3), "children_cpu_s": round(children, 3)}


def bench_regrade(folder: Path) -> dict[str, object]:
    from observer_core.rewards import builtin_rewards
    from observer_core.rollouts.reading import RolloutLog
    from observer_core.rollouts.regrade import GradeOptions, regrade

    make_log(folder / "log.parquet", 50_000)
    log = RolloutLog(folder / "log.parquet")
    runs: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    for _ in range(3):
        for workers in runs:
            runs[workers].append(timed(lambda w=workers: regrade(log, builtin_rewards(), GradeOptions(workers=w))))
    best = {workers: min(r, key=lambda x: x["wall_s"]) for workers, r in runs.items()}
    return {
        "benchmark": "re-grade 50,000 completions",
        "one": best[1],
        "two": best[2],  # its CPU is the reading process's: the others outlive the measurement
        "speed_up_wall": round(best[1]["wall_s"] / best[2]["wall_s"], 2),
        "load": os.getloadavg()[0],
    }


def bench_rouge(_folder: Path) -> dict[str, object]:
    from rouge_score.rouge_scorer import RougeScorer

    from observer_core.rewards import rouge_l

    rng = random.Random(0)
    words = [f"w{i}" for i in range(400)]
    pairs = [(" ".join(rng.choices(words, k=100)), " ".join(rng.choices(words, k=120))) for _ in range(300)]
    oracle = RougeScorer(["rougeL"])
    theirs = timed(lambda: [oracle.score(a, b) for a, b in pairs])
    ours = timed(lambda: [rouge_l(a, b) for a, b in pairs])
    worst = max(abs(oracle.score(a, b)["rougeL"].fmeasure - rouge_l(a, b)) for a, b in pairs)
    ratio = theirs["cpu_s"] / max(ours["cpu_s"], 1e-3)
    return {
        "benchmark": "ROUGE-L",
        "rouge_score": theirs,
        "ours": ours,
        "times_faster_cpu": round(ratio, 1),
        "worst": worst,
    }


class _Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def bench_emit(folder: Path) -> dict[str, object]:
    """Ours reads the log, grades and sends; the SDK only makes and exports spans with the same attributes."""
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from observer_core.rewards import builtin_rewards
    from observer_core.rollouts.emit import EmitOptions, emit
    from observer_core.rollouts.reading import RolloutLog
    from observer_core.rollouts.regrade import GradeOptions

    server = ThreadingHTTPServer(("127.0.0.1", 0), _Sink)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    rows = 4000
    make_log(folder / "log.parquet", rows)
    log = RolloutLog(folder / "log.parquet")
    sent: list[int] = []
    ours = timed(lambda: sent.append(emit(log, builtin_rewards(), EmitOptions(url), GradeOptions(workers=1)).spans))
    records = [row for batch in log.batches() for row in batch.to_pylist()]

    def sdk() -> None:
        provider = TracerProvider()
        exporter = OTLPSpanExporter(url, compression=Compression.Gzip)
        processor = BatchSpanProcessor(exporter, max_queue_size=10**6, max_export_batch_size=1000)
        provider.add_span_processor(processor)
        tracer = provider.get_tracer("bench")
        for start in range(0, rows, 8):
            with tracer.start_as_current_span("training step", attributes={"training.step": start // 8}):
                for row in records[start : start + 8]:
                    shown = {"input.value": row["prompt"], "output.value": row["completion"], "task.id": row["task_id"]}
                    scores = {f"reward.{r.name}.score": row[f"logged.{r.name}"] for r in builtin_rewards()}
                    shown |= scores | {"grpo.advantage": row["advantage"], "completion.length": 1, "completion.row": 1}
                    with tracer.start_as_current_span("completion", attributes=shown):
                        for name, score in scores.items():
                            facts = {"reward.name": name, "reward.score": score, "reward.weight": 1.0, "task.id": "t"}
                            facts |= {"training.step": 1, "gen_ai.evaluation.name": name, "reward.low": 0.0}
                            facts |= {"gen_ai.evaluation.score.value": score, "observer.reward.revision": "abc"}
                            with tracer.start_as_current_span("reward", attributes=facts):
                                pass
        processor.shutdown()

    theirs = timed(sdk)
    server.shutdown()
    spans = sent[0]
    return {
        "benchmark": "emit",
        "spans": spans,
        "ours": ours,
        "sdk": theirs,
        "ours_spans_per_cpu_s": round(spans / ours["cpu_s"]),
        "sdk_spans_per_cpu_s": round(spans / theirs["cpu_s"]),
        "share_of_sdk_cpu": round(theirs["cpu_s"] / ours["cpu_s"], 2),
        "share_of_sdk_wall": round(theirs["wall_s"] / ours["wall_s"], 2),
    }


def bench_analyze(folder: Path) -> dict[str, object]:
    """In a process of its own, whose memory is measured whole."""
    make_log(folder / "log.parquet", 1_000_000, words=40)
    child = os.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, __file__, "_analyze", str(folder / "log.parquet")])
    begun = time.perf_counter()
    _, status, usage = os.wait4(child, 0)
    return {
        "benchmark": "analyze 1,000,000 completions",
        "ok": status == 0,
        "wall_s": round(time.perf_counter() - begun, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_gb": round(usage.ru_maxrss / 2**20, 2),
        "file_mb": round((folder / "log.parquet").stat().st_size / 2**20),
        "load": os.getloadavg()[0],
    }


BENCHMARKS = {"rouge": bench_rouge, "regrade": bench_regrade, "emit": bench_emit, "analyze": bench_analyze}


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["_analyze"]:
        from observer_core.rollouts.features import extract
        from observer_core.rollouts.findings import analyze
        from observer_core.rollouts.reading import RolloutLog

        analysis = analyze(extract(RolloutLog(Path(arguments[1]))))
        print(len(analysis.features), [f.sentence for f in analysis.findings], file=sys.stderr)
        return
    for name in arguments or BENCHMARKS:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(BENCHMARKS[name](Path(folder))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
