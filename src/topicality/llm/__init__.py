"""Language models, where they help: asked with a time limit and a budget, never trusted, never in the way."""

from topicality.core.worker import Gates
from topicality.llm.adapters import CallableLlm, load_llm
from topicality.llm.asking import Asker, AskError, Role
from topicality.llm.budget import Budget, Counters
from topicality.llm.endpoint import OpenAILlm
from topicality.llm.settings import Roles

__all__ = [
    "AskError",
    "Asker",
    "Budget",
    "CallableLlm",
    "Counters",
    "Gates",
    "OpenAILlm",
    "Role",
    "Roles",
    "load_llm",
]
