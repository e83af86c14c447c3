"""Kept traces on their way to the back ends: decorated, queued on disk, sent until accepted."""

from observer_serving.export.decorate import decorate_root
from observer_serving.export.item import Exporter, ExporterStats, ExportItem, ExportOutcome, OnOutcome, QueueFull
from observer_serving.export.otlp_http import ExportOptions, OtlpHttpExporter

__all__ = [
    "ExportItem",
    "ExportOptions",
    "ExportOutcome",
    "Exporter",
    "ExporterStats",
    "OnOutcome",
    "OtlpHttpExporter",
    "QueueFull",
    "decorate_root",
]
