"""From settings to an exporter."""

from pathlib import Path

from observer_serving.config import ExporterSettings
from observer_serving.export.item import Exporter, OnOutcome
from observer_serving.export.queued import ExportOptions


def make_exporter(settings: ExporterSettings, folder: Path, *, on_outcome: OnOutcome | None = None) -> Exporter:
    """The exporter of these settings, its queue in `folder`; it does nothing before `start`. (Clients are imported only
    here: a service that exports nothing starts without them.)

    Raises:
        InputError: an endpoint or a file that cannot be used, or another process has the folder.
    """
    headers = {key: value.get_secret_value() for key, value in settings.headers.items()}
    options = ExportOptions(traces_per_second=settings.traces_per_second, max_batch_bytes=settings.max_batch)
    if settings.kind == "otlp_grpc":
        from observer_serving.export.otlp_grpc import OtlpGrpcExporter

        return OtlpGrpcExporter(
            settings.name,
            settings.endpoint,
            folder,
            headers=headers,
            ca=settings.ca,
            options=options,
            on_outcome=on_outcome,
        )
    from observer_serving.export.otlp_http import OtlpHttpExporter

    return OtlpHttpExporter(
        settings.name,
        settings.endpoint,
        folder,
        project=settings.project,
        headers=headers,
        annotate=settings.annotate,
        read_back=settings.read_back,
        ca=settings.ca,
        options=options,
        on_outcome=on_outcome,
    )
