"""An analysis as files: `findings.json`, `evidence.parquet`, a plot per finding and `report.md` around them."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from observer_core.files import whole_dir
from observer_core.rollouts.columns import LOGGED
from observer_core.rollouts.findings import Analysis, Finding
from observer_core.rollouts.reading import RolloutLog

EVIDENCE_ROWS = 50
"""Evidence rows per finding that are written with their texts."""


def write_report(folder: Path, analysis: Analysis, log: RolloutLog, *, plots: bool = True) -> None:
    """Write the report to `folder` (replaced whole). Plots need matplotlib."""
    with whole_dir(folder, replace=True) as aside:
        (aside / "findings.json").write_text(json.dumps(analysis.to_json(), indent=1))
        evidence = evidence_table(analysis.findings, log)
        pq.write_table(evidence, aside / "evidence.parquet", compression="zstd")
        names: list[str | None] = []
        for number, finding in enumerate(analysis.findings):
            name = f"{number:02d}-{finding.kind}.png" if plots and finding.series else None
            if name:
                (aside / name).write_bytes(plot(finding, analysis.features.steps))
            names.append(name)
        (aside / "report.md").write_text(_markdown(analysis, log, names))


def evidence_table(findings: Sequence[Finding], log: RolloutLog, rows: int = EVIDENCE_ROWS) -> pa.Table:
    """The first `rows` evidence rows of each finding with prompt, exact completion and logged scores; reads the log
    again.
    """
    wanted = {row: [] for finding in findings for row in finding.rows[:rows].tolist()}
    for number, finding in enumerate(findings):
        for row in finding.rows[:rows].tolist():
            wanted[row].append(number)
    schema = pa.schema(
        [("finding", pa.int32()), ("kind", pa.string())]
        + [log.schema.field(n) for n in ("row", "step", "task_id", "prompt", "completion", "advantage")]
        + [pa.field(name, pa.float64()) for name in log.rewards]
    )
    numbers = pa.array(sorted(wanted), pa.int64())
    compute: Any = pyarrow.compute
    found: list[dict[str, Any]] = []
    for batch in log.batches() if wanted else ():
        hits = batch.filter(compute.is_in(batch.column("row"), numbers))
        for row in hits.to_pylist():
            values = {name: row[LOGGED + name] for name in log.rewards}
            found += [{**row, **values, "finding": n, "kind": findings[n].kind} for n in wanted[row["row"]]]
    return pa.Table.from_pylist([{f.name: row[f.name] for f in schema} for row in found], schema).sort_by(
        [("finding", "ascending"), ("row", "ascending")]
    )


def plot(finding: Finding, steps: np.ndarray) -> bytes:
    """What the finding is about, step by step, with its window shaded; a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    for name, values in finding.series.items():
        axes.plot(steps, values, label=name, linewidth=1)
    axes.axvspan(finding.steps[0] - 0.5, finding.steps[1] + 0.5, color="tab:red", alpha=0.12)
    axes.set(xlabel="step", title=f"{finding.kind}: {finding.count} completions")
    axes.legend(fontsize=8)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return stream.getvalue()


def _markdown(analysis: Analysis, log: RolloutLog, plots: Sequence[str | None]) -> str:
    features = analysis.features
    lines = [f"# Findings in {log.run}", "", f"{len(features)} completions in {len(features.steps)} steps.", ""]
    if not analysis.findings:
        lines += ["Nothing was found.", ""]
    for finding, image in zip(analysis.findings, plots, strict=True):
        lines += [f"## {finding.kind}", "", finding.sentence, ""]
        shown = ", ".join(str(r) for r in finding.rows[:20].tolist())
        more = f" and {finding.count - 20} more" if finding.count > 20 else ""
        lines += [f"Evidence rows: {shown}{more}.", ""]
        if image:
            lines += [f"![{finding.kind}]({image})", ""]
    if features.fidelity.rewards:
        lines += [
            "## Graded again",
            "",
            "| reward | rows | largest drift | mean drift | precision |",
            "|---|---|---|---|---|",
        ]
        for name, drift in features.fidelity.rewards.items():
            lines.append(
                f"| {name} | {drift.rows} | {drift.max:.2e} | {drift.mean:.2e} | {drift.precision or 'differs'} |"
            )
        lines.append("")
    lines += ["## Tested and rejected", "", "| hypothesis | number |", "|---|---|"]
    lines += [f"| {item['hypothesis']} | {item['number']:g} |" for item in analysis.rejected]
    if log.problems.counts:
        lines += ["", "## Broken input", "", *(f"- {line}" for line in log.problems.lines())]
    return "\n".join(lines) + "\n"
