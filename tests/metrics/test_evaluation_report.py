"""What an evaluation leaves on disk."""

import base64
import json
import re
from html.parser import HTMLParser

import pyarrow as pa
import pytest

from observer_core.metrics.plots import plots
from observer_core.metrics.predictions import PREDICTION_SCHEMA, read_predictions
from observer_core.metrics.report import write_evaluation


class Page(HTMLParser):
    """Collects text, image sources and every address, and checks that tags close in order."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href"):
                (self.images if tag == "img" else self.addresses).append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_report_says_the_verdict_first_and_carries_its_plots(table, tmp_path):
    predictions = table(250, laya=0.9, baseline=0.3)
    returned = write_evaluation(
        tmp_path, predictions, scorer="laya", title="Run <one>", notes={"data": "a & b"}, run="runs/one"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "metrics.json", "predictions.parquet", "report.html", "report.md",
    ]  # fmt: skip
    assert json.loads((tmp_path / "metrics.json").read_text()) == returned
    assert returned["all"]["auroc"].keys() == {"value", "lo", "hi", "n"}
    assert read_predictions(tmp_path / "predictions.parquet").equals(predictions)

    page = Page((tmp_path / "report.html").read_text())
    assert page.open == []
    assert page.addresses == []
    assert len(page.images) == 4
    for image in page.images:
        kind, data = image.split(",", 1)
        assert kind == "data:image/svg+xml;base64"
        assert b"<svg" in base64.b64decode(data, validate=True)
    markdown = (tmp_path / "report.md").read_text()
    for text in (page.text, markdown):
        assert "Run <one>" in text
        assert "a & b" in text
        assert "observer serve --config observer.yaml" in text
        verdict = text.index("laya ranks better than baseline: AUROC +0.")
        assert verdict < text.index("laya may be promoted.") < text.index("recall, reading 5 %")
    value = f"{returned['all']['auroc']['value']:.3f}"
    assert re.search(rf"\| AUROC \| {value} \(0\.\d+ to 0\.\d+\) \|", markdown)


def test_a_report_on_one_class_gives_reasons_in_place_of_numbers(table, tmp_path):
    rows = [row | {"label": "wrong"} for row in table(30, laya=0.9).to_pylist()]
    returned = write_evaluation(
        tmp_path, pa.Table.from_pylist(rows, schema=PREDICTION_SCHEMA), scorer="laya", title="One class"
    )
    assert returned["all"]["auroc"] == {
        "value": None, "lo": None, "hi": None, "n": 90, "reason": "all of these traces are wrong",
    }  # fmt: skip
    page = Page((tmp_path / "report.html").read_text())
    assert page.images == []
    assert "all of these traces are wrong" in page.text
    assert "There is neither a champion nor a baseline to compare with." in page.text


@pytest.mark.parametrize(("format", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_plots_are_images_and_repeat(table, format, start):
    predictions = table(60, laya=0.9, baseline=0.3)
    images = plots(predictions, ["laya", "baseline"], format=format)
    assert list(images) == ["roc", "budget", "reliability", "scores"]
    assert all(image.startswith(start) for image in images.values())
    assert plots(predictions, ["laya", "baseline"], format=format) == images
