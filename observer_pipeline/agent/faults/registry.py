"""The list of faults, and of the harmless disturbances that look like some of them. A new fault is one line here."""

from observer_pipeline.agent.faults.attention import (
    early_stop,
    lost_context,
    lost_context_harmless,
    other_question,
    weak_model,
)
from observer_pipeline.agent.faults.entities import swapped_hop, wrong_entity
from observer_pipeline.agent.faults.evidence import (
    contradiction,
    missing_evidence,
    missing_evidence_harmless,
    stale_result,
    truncated_result,
    truncated_result_harmless,
)
from observer_pipeline.agent.faults.failing import (
    tool_error,
    tool_error_harmless,
    tool_timeout,
    tool_timeout_harmless,
)
from observer_pipeline.agent.faults.injection import Fault
from observer_pipeline.agent.faults.instructions import (
    ignored_instruction,
    ignored_instruction_harmless,
    prompt_injection,
    prompt_injection_harmless,
)
from observer_pipeline.agent.faults.slips import arithmetic_slip, date_slip, unsupported_claim

FAULTS: dict[str, Fault] = {
    "contradiction": contradiction,
    "missing_evidence": missing_evidence,
    "early_stop": early_stop,
    "weak_model": weak_model,
    "stale_result": stale_result,
    "truncated_result": truncated_result,
    "tool_error": tool_error,
    "tool_timeout": tool_timeout,
    "wrong_entity": wrong_entity,
    "swapped_hop": swapped_hop,
    "arithmetic_slip": arithmetic_slip,
    "date_slip": date_slip,
    "ignored_instruction": ignored_instruction,
    "other_question": other_question,
    "unsupported_claim": unsupported_claim,
    "prompt_injection": prompt_injection,
    "lost_context": lost_context,
}

TOSSED = frozenset(
    ("missing_evidence", "truncated_result", "tool_error", "tool_timeout", "wrong_entity", "early_stop", "lost_context")
)
"""Faults after which one of two answers is guessed or read from another's page, so that half are right by luck."""

AS_OFTEN: dict[str, float] = {
    "missing_evidence": 1.0,
    "truncated_result": 1.2,
    "tool_error": 0.8,
    "tool_timeout": 0.8,
    "ignored_instruction": 3.0,
    "prompt_injection": 2.1,
    "lost_context": 1.4,
}
"""How many natural runs get the look-alike of a fault for each run that gets the fault: so many that of all the runs
with the mark as many end wrong as of others. A fault always ends wrong, its look-alike as often as natural runs."""

HARMLESS: dict[str, Fault] = {
    "missing_evidence": missing_evidence_harmless,
    "truncated_result": truncated_result_harmless,
    "tool_error": tool_error_harmless,
    "tool_timeout": tool_timeout_harmless,
    "ignored_instruction": ignored_instruction_harmless,
    "prompt_injection": prompt_injection_harmless,
    "lost_context": lost_context_harmless,
}
