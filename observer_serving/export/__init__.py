"""Kept traces on their way to the back ends: decorated, queued on disk, sent until accepted."""

from observer_serving.export.decorate import decorate_root
from observer_serving.export.item import Exporter, ExporterStats, ExportItem, ExportOutcome, OnOutcome, QueueFull
from observer_serving.export.make import make_exporter
from observer_serving.export.queued import ExportOptions

__all__ = [
    "ExportItem",
    "ExportOptions",
    "ExportOutcome",
    "Exporter",
    "ExporterStats",
    "OnOutcome",
    "QueueFull",
    "decorate_root",
    "make_exporter",
]
