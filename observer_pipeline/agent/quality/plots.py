"""The plots of the data quality report, as SVG. matplotlib is imported when they are drawn; no pyplot."""

import io
from collections.abc import Mapping, Sequence

import numpy as np

from observer_core.metrics.plots import COLOURS, LABEL_COLOURS
from observer_pipeline.agent.quality.contents import Share
from observer_pipeline.agent.quality.guessing import Guess
from observer_pipeline.agent.quality.surface import LIMIT

_STYLE: dict = {
    "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "legend.frameon": False, "legend.fontsize": 9, "svg.hashsalt": "observer",
}  # fmt: skip


def plots(faults: Sequence[Share], surface: Mapping[str, Guess], probe: Mapping[str, Guess]) -> dict[str, bytes]:
    """Caption → image: labels by fault, and how well labels and seeded runs are guessed."""
    images = {"Labels by fault": _labels(faults), "Guessing the label from one part": _guesses(surface, LIMIT)}
    if probe:
        images["Telling seeded runs without reading"] = _guesses(probe, None)
    return images


def _labels(faults: Sequence[Share]) -> bytes:
    with _Drawing(rows=len(faults)) as drawing:
        places = np.arange(len(faults))
        left = np.zeros(len(faults))
        for label, colour in LABEL_COLOURS.items():
            counts = np.array([share.labels[label] for share in faults], dtype=float)
            drawing.axes.barh(places, counts, left=left, color=colour, label=label, edgecolor="white", linewidth=0.5)
            left += counts
        drawing.axes.set_yticks(places, [share.name for share in faults])
        drawing.axes.invert_yaxis()
        drawing.axes.set_xscale("symlog", linthresh=50)
        drawing.axes.set_xlabel("traces (logarithmic from 50 on)")
        drawing.axes.legend(loc="lower right")
    return drawing.image


def _guesses(guesses: Mapping[str, Guess], limit: float | None) -> bytes:
    shown = {name: guess for name, guess in guesses.items() if guess.auroc is not None}
    with _Drawing(rows=len(shown)) as drawing:
        places = np.arange(len(shown))
        drawing.axes.axvline(0.5, color="#9aa0a6", linestyle="--", linewidth=1)
        if limit is not None:
            drawing.axes.axvline(limit, color="#b5443c", linewidth=1)
        for place, guess in zip(places, shown.values(), strict=True):
            drawing.axes.plot([guess.low, guess.high], [place, place], color="#dadce0", linewidth=7)
        values = [guess.auroc or 0.0 for guess in shown.values()]
        drawing.axes.plot(values, places, "o", color=COLOURS[0], markersize=6)
        drawing.axes.set_yticks(places, list(shown))
        drawing.axes.invert_yaxis()
        drawing.axes.set(xlim=(0.3, 1.0), xlabel="AUROC (grey: what chance gives)")
    return drawing.image


class _Drawing:
    """Axes for horizontal rows; `image` holds the SVG afterwards."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.image = b""

    def __enter__(self) -> "_Drawing":
        import matplotlib
        from matplotlib.figure import Figure

        self._context = matplotlib.rc_context(_STYLE)
        self._context.__enter__()
        self._figure = Figure(figsize=(5.6, 1.2 + 0.28 * max(4, self.rows)), layout="constrained")
        self.axes = self._figure.add_subplot()
        return self

    def __exit__(self, *error: object) -> None:
        stream = io.BytesIO()
        if error[0] is None:
            self._figure.savefig(stream, format="svg", metadata={"Date": None})
        self._context.__exit__(None, None, None)
        self.image = stream.getvalue()
