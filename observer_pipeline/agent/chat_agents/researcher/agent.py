"""`root_agent`, the name ADK's server looks for."""

import os

from google.adk.agents.callback_context import CallbackContext

from observer_pipeline.agent.chat import MODEL_VARIABLE, SOURCE_VARIABLE, all_paragraphs, sample_questions
from observer_pipeline.agent.models.choose import build_model
from observer_pipeline.agent.runner import Budget, build_agent
from observer_pipeline.agent.tools import ParagraphIndex, Toolbox

_toolbox = Toolbox(
    ParagraphIndex(all_paragraphs(sample_questions(os.environ.get(SOURCE_VARIABLE)))), Budget().tool_calls
)


def _new_budget(callback_context: CallbackContext) -> None:  # noqa: ARG001 - ADK passes it by name
    """Every message has the whole budget."""
    _toolbox.calls = 0


root_agent = build_agent(build_model(os.environ.get(MODEL_VARIABLE, "offline")), _toolbox)
root_agent.before_agent_callback = _new_budget
