"""The test agent: a Google ADK agent over a paragraph corpus, its questions, faults, and the labeled traces it makes.

ADK's telemetry schema 1 is chosen here, before ADK can be imported: OpenInference's instrumentation writes one span per
model call only under it (schema 2 has no `call_llm` span, so every call would overwrite the agent's).
"""

import os

os.environ["ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN"] = "1"
