"""Kept traces on their way to the back ends: decorated, queued on disk, sent until accepted."""

from observer_serving.export.decorate import decorate_root
from observer_serving.export.item import Exporter, ExporterStats, ExportItem, ExportOutcome, OnOutcome, QueueFull
from observer_serving.export.make import make_exporter
from observer_serving.export.otlp_grpc import OtlpGrpcExporter
from observer_serving.export.otlp_http import OtlpHttpExporter
from observer_serving.export.queued import ExportOptions

__all__ = [
    "ExportItem",
    "ExportOptions",
    "ExportOutcome",
    "Exporter",
    "ExporterStats",
    "OnOutcome",
    "OtlpGrpcExporter",
    "OtlpHttpExporter",
    "QueueFull",
    "decorate_root",
    "make_exporter",
]
