"""The four plots of an evaluation. matplotlib is imported when one is drawn; no global state (no pyplot)."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from observer_core.metrics.predictions import Sample, sample_of
from observer_core.metrics.probability import reliability
from observer_core.metrics.ranking import BUDGETS, Gains, auroc, oracle_recall

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#1f5fa8", "#d9772b", "#3a8f6b", "#8a5a9e", "#7a7a7a")
LABEL_COLOURS = {"wrong": "#b5443c", "partial": "#e3a857", "correct": "#8fb3d9"}
_REFERENCE = "#9aa0a6"
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#5f6368",
    "axes.labelcolor": "#3c4043",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e8eaed",
    "grid.linewidth": 0.8,
    "xtick.color": "#5f6368",
    "ytick.color": "#5f6368",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "svg.hashsalt": "observer",
}
TITLES = {
    "roc": "Ranking (ROC)",
    "budget": "Wrong answers found by reading the top of the list",
    "reliability": "Reliability",
    "scores": "Scores by label",
}

Samples = dict[str, Sample]


def plots(predictions: pa.Table, scorers: Sequence[str], *, format: Literal["png", "svg"] = "png") -> dict[str, bytes]:
    """Name → image: `roc`, `budget` (recall against review budget), `reliability`, `scores` (of the first scorer).

    Scorers without both classes are left out; without any, there are no plots.
    """
    samples = {name: sample for name in scorers if (sample := sample_of(predictions, name)).problem is None}
    if not samples:
        return {}
    draw: dict[str, Callable[[Axes, Samples], None]] = {
        "roc": _roc,
        "budget": _budget,
        "reliability": _reliability,
        "scores": _scores,
    }
    images = {}
    for name, function in draw.items():
        with _axes(format) as (axes, image):
            function(axes, samples)
        images[name] = image.getvalue()
    return images


@contextmanager
def _axes(format: str) -> Iterator[tuple["Axes", io.BytesIO]]:
    """Axes to draw on; the image is rendered into the buffer at the end."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(5.0, 3.9), layout="constrained")
        image = io.BytesIO()
        yield figure.add_subplot(), image
        metadata = {"Date": None} if format == "svg" else {"Software": None}
        figure.savefig(image, format=format, dpi=160, metadata=metadata)


def _percent_axes(axes: "Axes", *, x: str, y: str) -> None:
    from matplotlib.ticker import PercentFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set(xlabel=x, ylabel=y, xlim=(0, 1), ylim=(0, 1.01))


def _roc(axes: "Axes", samples: Samples) -> None:
    axes.plot([0, 1], [0, 1], color=_REFERENCE, linestyle="--", linewidth=1)
    for colour, (name, sample) in zip(_colours(samples), samples.items(), strict=True):
        read, found = Gains(sample.p, sample.wrong).cumulative(sample.weight)
        missed = read - found
        axes.plot(missed / missed[-1], found / found[-1], color=colour, label=f"{name}  {auroc(sample).value:.3f}")
    _percent_axes(axes, x="correct answers read", y="wrong answers found")
    axes.legend(loc="lower right", title="AUROC", alignment="right")


def _budget(axes: "Axes", samples: Samples) -> None:
    grid = np.linspace(0, 1, 201)
    first = next(iter(samples.values()))
    share = float(np.average(first.wrong, weights=first.weight))
    for budget in BUDGETS[1:]:
        axes.axvline(budget, color="#dadce0", linewidth=1)
    axes.plot(grid, oracle_recall(share, grid), color=_REFERENCE, linestyle=":", linewidth=1.4, label="oracle")
    for colour, (name, sample) in zip(_colours(samples), samples.items(), strict=True):
        axes.plot(grid, Gains(sample.p, sample.wrong).recall(sample.weight, grid), color=colour, label=name)
    axes.plot(grid, grid, color=_REFERENCE, linestyle="--", linewidth=1, label="random")
    _percent_axes(axes, x="traces read (review budget)", y="wrong answers found (recall)")
    axes.legend(loc="lower right")


def _reliability(axes: "Axes", samples: Samples) -> None:
    axes.plot([0, 1], [0, 1], color=_REFERENCE, linestyle="--", linewidth=1)
    for i, (colour, (name, sample)) in enumerate(zip(_colours(samples), samples.items(), strict=True)):
        bins = reliability(sample)
        bars = 1.96 * np.nan_to_num(bins.se) if i == 0 else None
        axes.errorbar(
            bins.score, bins.observed, yerr=bars, color=colour, label=name, marker="o", markersize=4.5 if i == 0 else 3,
            linewidth=1.5 if i == 0 else 0.9, elinewidth=1, capsize=2, alpha=1 if i == 0 else 0.75,
        )  # fmt: skip
    _percent_axes(axes, x="score (p_wrong, mean of the bin)", y="really wrong")
    axes.legend(loc="lower right")


def _scores(axes: "Axes", samples: Samples) -> None:
    from matplotlib.ticker import PercentFormatter

    name, sample = next(iter(samples.items()))
    parts = {
        "wrong": sample.wrong & ~sample.partial,
        "partial": sample.partial,
        "correct": ~sample.wrong,
    }
    shown = {label: rows for label, rows in parts.items() if rows.any()}
    axes.hist(
        [sample.p[rows] for rows in shown.values()],
        bins=np.linspace(0, 1, 26).tolist(),
        weights=[sample.weight[rows] for rows in shown.values()],
        stacked=True,
        color=[LABEL_COLOURS[label] for label in shown],
        label=list(shown),
        edgecolor="white",
        linewidth=0.5,
    )
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set(xlabel=f"score of {name} (p_wrong)", ylabel="traces", xlim=(0, 1))
    axes.legend(loc="best")


def _colours(samples: Samples) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(len(samples))]
