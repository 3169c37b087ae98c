"""A language model's reply, never trusted: found in prose and fences, held against a strict schema, explained if refused."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from topicality.config import Policy

_MOST = 200_000  # characters of a reply that are looked at


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a judge said, valid for the policy it was asked about.

    Attributes:
        kind: "allowed", "off_topic" or "blocked". rule: name of the rule, or None.
        confidence: [0, 1]. reason: one sentence for people.
    """

    kind: Literal["allowed", "off_topic", "blocked"]
    rule: str | None
    confidence: float
    reason: str


def judgement_schema(policy: Policy) -> dict[str, Any]:
    """JSON schema of a judge's reply to this policy: closed, with the policy's own rule names."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["verdict", "rule", "confidence", "reason"],
        "properties": {
            "verdict": {"type": "string", "enum": ["allowed", "off_topic", "blocked"]},
            "rule": {"type": ["string", "null"], "enum": [*(rule.name for _, rule in policy.sided()), None]},
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
            "reason": {"type": "string", "maxLength": 400},
        },
    }


def objects(text: str) -> Iterator[dict[str, Any]]:
    """JSON objects in a text, outermost only, in order; fences, prose and broken braces are passed over."""
    decoder = json.JSONDecoder()
    text = text[:_MOST]
    start = text.find("{")
    tries = 0
    while start != -1 and tries < 200:
        tries += 1
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start = text.find("{", start + 1)
            continue
        if isinstance(value, dict):
            yield value
        start = text.find("{", end)


def read_judgement(reply: object, policy: Policy, *, quoted: Sequence[Mapping[str, Any]] = ()) -> Judgement | list[str]:
    """The judgement in a reply, or what is wrong with it.

    Args:
        reply: text, or an object that is already parsed.
        quoted: objects that stand in what was judged; a reply that repeats one of them does not judge by it.
    Returns:
        The first object that satisfies the schema, unless a later one contradicts it: a model that quotes a message before
        it judges says both. Otherwise the faults of the first object, or of the whole reply.
    """
    if isinstance(reply, Mapping):
        return _judgement(reply, policy)
    if not isinstance(reply, str):
        return [f"the reply must be a JSON object, got {type(reply).__name__}"]
    faults: list[str] = []
    found: list[Judgement] = []
    for candidate in objects(reply):
        if any(candidate == one for one in quoted):
            faults.append("an object of the message was repeated; judge the message instead")
            continue
        answer = _judgement(candidate, policy)
        if isinstance(answer, Judgement):
            found.append(answer)
        else:
            faults = faults or answer
    if any((one.kind, one.rule) != (found[0].kind, found[0].rule) for one in found):
        return ["the reply has several verdicts that contradict each other; give one"]
    return found[0] if found else faults or ["the reply has no JSON object"]


def _infinite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)  # a whole number may be too large to become a float


def _judgement(value: Mapping[str, Any], policy: Policy) -> Judgement | list[str]:
    wanted = {"verdict", "rule", "confidence", "reason"}
    faults = [f"missing key {key!r}" for key in ("verdict", "rule", "confidence") if key not in value]
    faults += [f"unknown key {str(key)[:40]!r}" for key in value if key not in wanted]
    if faults:
        return faults
    kind, rule, confidence, reason = value["verdict"], value["rule"], value["confidence"], value.get("reason", "")
    if kind not in ("allowed", "off_topic", "blocked") or not isinstance(kind, str):
        faults.append("verdict must be one of allowed, off_topic, blocked")
    if kind == "off_topic" and not policy.allowed:
        faults.append("nothing is off_topic when any topic is allowed")
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or _infinite(confidence):
        faults.append("confidence must be a number")
    elif not 0 <= confidence <= 1:
        faults.append("confidence must be between 0 and 1")
    if not isinstance(reason, str):
        faults.append("reason must be text")
    sides = {entry.name: side for side, entry in policy.sided()}
    if rule is not None and (not isinstance(rule, str) or rule not in sides):
        faults.append("rule must be null or one of the given names, spelled exactly")
    elif kind == "blocked" and (rule is None or sides[rule] != "blocked"):
        faults.append("a blocked verdict must name the blocked rule")
    elif kind == "allowed" and rule is not None and sides[rule] != "allowed":
        faults.append("an allowed verdict cannot name a blocked rule")
    if faults:
        return faults
    return Judgement(kind, rule, float(confidence), " ".join(reason.split())[:400])
