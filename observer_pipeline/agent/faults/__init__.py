"""Seeded faults: what is made to go wrong in a run, and the declarative plan that says how often.

A fault acts through the tools (what they find or return) or the model (how it behaves), so that the trace looks as it
would in life; what was done is kept beside the trace, in the ledger. A new fault is one function in the file of its
family and one line in `FAULTS`. Where a fault leaves a mark that a trace could be known by (an error, a cut text, an
order in a paragraph, a long chat), `HARMLESS` has the same mark without the fault, which natural runs get as often.
"""

from observer_pipeline.agent.faults.injection import Fault, Injection
from observer_pipeline.agent.faults.plan import FaultPlan
from observer_pipeline.agent.faults.registry import FAULTS, HARMLESS

__all__ = ["FAULTS", "HARMLESS", "Fault", "FaultPlan", "Injection"]
