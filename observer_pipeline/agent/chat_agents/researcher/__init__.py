"""The agent as ADK's server loads it: the instrumentation goes onto the tracer provider the server has set."""

from openinference.instrumentation.google_adk import GoogleADKInstrumentor

GoogleADKInstrumentor().instrument()
