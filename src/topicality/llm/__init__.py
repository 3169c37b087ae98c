"""Language models, where they help: asked with a time limit and a budget, never trusted, never in the way."""

from topicality.llm.adapters import CallableLlm, OpenAILlm, load_llm
from topicality.llm.asking import Asker, Budget, Counters, Role

__all__ = ["Asker", "Budget", "CallableLlm", "Counters", "OpenAILlm", "Role", "load_llm"]
