"""The agent as ADK's server loads it: under a plain `adk web` the instrumentation is added here."""

from openinference.instrumentation.google_adk import GoogleADKInstrumentor

if not GoogleADKInstrumentor().is_instrumented_by_opentelemetry:
    GoogleADKInstrumentor().instrument()
