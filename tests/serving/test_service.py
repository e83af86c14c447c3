"""The service as a whole: real processes, real clients."""

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tests.serving.conftest import Service, make_request, new_trace, summed, wait_until


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_opentelemetry_sdk_exporters(shared_service: Service, transport: str):
    if transport == "http":
        exporter = HttpExporter(endpoint=shared_service.otlp_http + "/v1/traces")
    else:
        exporter = GrpcExporter(endpoint=shared_service.otlp_grpc, insecure=True)
    provider = TracerProvider(resource=Resource({"service.name": f"sdk-{transport}"}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    ids = set()
    for _ in range(20):
        with tracer.start_as_current_span("run") as root:
            root.set_attribute("input.value", "Which river?")
            root.set_attribute("output.value", "The Danube.")
            with tracer.start_as_current_span("search", attributes={"openinference.span.kind": "TOOL"}):
                pass
        ids.add(f"{root.get_span_context().trace_id:032x}")
    provider.shutdown()
    wait_until(lambda: ids <= {d["trace_id"] for d in shared_service.decisions()})
    mine = [d for d in shared_service.decisions() if d["trace_id"] in ids]
    assert {(d["spans"], d["project"], d["complete_reason"], d["model"]) for d in mine} == {
        (2, f"sdk-{transport}", "root_ended", "builtin")
    }
