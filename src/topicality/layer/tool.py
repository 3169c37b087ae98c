"""`check_topic`: the guard as a tool for agents, a plain function with a JSON schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from topicality.errors import TopicalityError
from topicality.layer.guard import Guard


@dataclass(frozen=True)
class Tool:
    """A tool for function-calling models.

    Attributes:
        name, description: for the model. parameters: JSON schema of the arguments.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    guard: Guard

    def __call__(self, text: str) -> dict[str, Any]:
        """The guard's own verdict on the text, as plain values, with `ok` true; `ok` false and `error` on bad input."""
        if not str(text or "").strip():
            return {"ok": False, "error": "text is required and must not be blank"}
        try:
            return {"ok": True, **self.guard.check(text).to_dict()}
        except TopicalityError as error:
            return {"ok": False, "error": str(error)}

    def openai(self) -> dict[str, Any]:
        """The tool in the form that OpenAI-compatible chat APIs take."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


def check_topic_tool(guard: Guard) -> Tool:
    """The `check_topic` tool for this guard. It decides exactly as `guard.check` does for the same text."""
    return Tool(
        "check_topic",
        "Check whether a text stays on the topics this assistant is for. Returns the action (allow, flag, redirect, block), "
        "the reason, the topic that decided, its score and its threshold.",
        {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "The text to check."}},
            "required": ["text"],
            "additionalProperties": False,
        },
        guard,
    )
