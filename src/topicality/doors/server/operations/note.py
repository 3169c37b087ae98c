"""What the rooms tell the access log about a request they answer."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.routing import Mount

from topicality.types import Verdict

_PLACE = "topicality.note"  # in the ASGI scope, which all layers of an application share


@dataclass(slots=True)
class Note:
    """One request, for its line in the log. Nothing here may be text of a message.

    Attributes:
        id: the request's id, also sent back as `x-topicality-request-id`. key: name of the caller's key.
        action, reason: of the guard's verdict on the user's message. error: code of the error it was answered with.
        route: template of the route that answered; "" until it is known.
    """

    id: str = ""
    key: str = ""
    action: str = ""
    reason: str = ""
    error: str = ""
    route: str = ""

    def judged(self, verdict: Verdict) -> None:
        """Note what the guard said."""
        self.action, self.reason = verdict.action, verdict.reason_code


def note(scope: MutableMapping[str, Any]) -> Note:
    """The note of a request, by its ASGI scope (`request.scope`)."""
    found = scope.get(_PLACE)
    if not isinstance(found, Note):
        found = scope[_PLACE] = Note()
    return found


def routed(scope: MutableMapping[str, Any]) -> str:
    """Note the template of the route that a scope was given to ("/api/topics/{id}", the same for all ids), and return it.

    For a layer that gave its application a copy of the scope: what is routed inside shows in the copy only.
    """
    seen = note(scope)
    if not seen.route:
        found = scope.get("route")
        path = getattr(found, "path", None)
        if path is None:
            return "unmatched"
        inside = "" if isinstance(found, Mount) else scope.get("root_path", "")
        seen.route = f"{inside}{path}" or "/"
    return seen.route
