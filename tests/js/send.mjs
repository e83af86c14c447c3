// Sends traces through the OpenTelemetry JS SDK: node send.mjs json|protobuf|grpc ENDPOINT COUNT; prints the trace ids.
import { SpanKind, SpanStatusCode, context, trace } from "@opentelemetry/api";
import { OTLPTraceExporter as GrpcExporter } from "@opentelemetry/exporter-trace-otlp-grpc";
import { OTLPTraceExporter as JsonExporter } from "@opentelemetry/exporter-trace-otlp-http";
import { OTLPTraceExporter as ProtobufExporter } from "@opentelemetry/exporter-trace-otlp-proto";
import { resourceFromAttributes } from "@opentelemetry/resources";
import { BasicTracerProvider, BatchSpanProcessor } from "@opentelemetry/sdk-trace-base";

const [transport, url, count] = process.argv.slice(2);
const Exporter = { json: JsonExporter, protobuf: ProtobufExporter, grpc: GrpcExporter }[transport];
const provider = new BasicTracerProvider({
  resource: resourceFromAttributes({ "service.name": `js-${transport}` }),
  spanProcessors: [new BatchSpanProcessor(new Exporter({ url, compression: "gzip" }))],
});
const tracer = provider.getTracer("rivers", "1.0");
for (let number = 0; number < Number(count); number++) {
  const root = tracer.startSpan("run", {
    kind: SpanKind.SERVER,
    attributes: { "openinference.span.kind": "AGENT", "input.value": "Which river? Ünïcödé 🌊", steps: 2, share: 0.5 },
  });
  const inside = trace.setSpan(context.active(), root);
  const tool = tracer.startSpan("search", { attributes: { "openinference.span.kind": "TOOL", "tool.name": "search" } }, inside);
  tool.addEvent("found", { titles: ["Rhine", "Elbe"], first: true });
  tool.addLink({ context: root.spanContext() });
  tool.setStatus({ code: SpanStatusCode.ERROR, message: "timed out" });
  tool.end();
  root.setAttribute("output.value", "The Danube.");
  root.end();
  console.log(root.spanContext().traceId);
}
await provider.forceFlush();
await provider.shutdown();
