"""Asking once, when a policy is written, what its topics include and what only looks like them; for a person to review."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tomlkit
from tomlkit.items import AoT, Array, InlineTable, Table

from topicality.config import Policy, Side
from topicality.core.expansion import Expansion
from topicality.errors import ConfigError, LlmError
from topicality.llm.asking import Asker, AskError
from topicality.llm.roles import expanding
from topicality.types import LlmUse

_NOTE = "suggested by a language model (topicality policy expand): review"


@dataclass(frozen=True, slots=True)
class Expanded:
    """What was suggested for one rule: an expansion, or why there is none; and what it cost."""

    side: Side
    rule: str
    found: Expansion | None
    why: str
    llm: LlmUse


def expand(
    policy: Policy, asker: Asker, *, timeout: float = 60.0, progress: Callable[[int], None] | None = None
) -> list[Expanded]:
    """Ask once for each rule. A rule for which there is no usable answer is reported, and the others go on.

    Raises:
        LlmError: there was no usable answer for any rule.
    """
    results: list[Expanded] = []
    names = [rule.name for _, rule in policy.sided()]
    for done, (side, rule) in enumerate(policy.sided(), 1):
        role, question = expanding(rule, side, [name for name in names if name != rule.name])
        try:
            found, use = asker.ask(role, question, timeout=timeout)
            results.append(Expanded(side, rule.name, found, "", use))
        except AskError as error:
            results.append(Expanded(side, rule.name, None, str(error), error.use))
        if progress is not None:
            progress(done)
    if results and all(result.found is None for result in results):
        raise LlmError(f"the language model gave no usable answer for any rule: {results[0].why}")
    return results


def expanded_toml(text: str, expansions: list[Expanded]) -> str:
    """A policy in TOML with the suggestions added behind its own examples; comments, order and layout stay.

    Raises:
        ConfigError: the result would not be the policy with these additions (which would be our fault).
    """
    document = tomlkit.parse(text)
    for result in expansions:
        if result.found is not None:
            _add(_entry(document, result.side, result.rule), result.found)
    written = tomlkit.dumps(document)
    wanted = expanded_values(Policy.parse(text, "toml").dump(), expansions)
    if Policy(**wanted) != Policy.parse(written, "toml"):
        raise ConfigError("the suggestions cannot be written into this layout of TOML; use --output with .json")
    return written


def expanded_values(values: Mapping[str, Any], expansions: list[Expanded]) -> dict[str, Any]:
    """A policy as plain values (`Policy.dump`) with the suggestions added."""
    out = dict(values)
    for result in expansions:
        if result.found is None:
            continue
        rules = [dict(rule) for rule in out[result.side]]
        for rule in rules:
            if rule["name"] == result.rule:
                rule["examples"] = [*rule.get("examples", ()), *result.found.includes]
                rule["counterexamples"] = [*rule.get("counterexamples", ()), *result.found.near_misses]
        out[result.side] = rules
    return out


def _entry(document: tomlkit.TOMLDocument, side: str, name: str) -> Table | InlineTable:
    """The table of a rule; a rule that is only a name becomes one."""
    rules: Any = document[side]
    if isinstance(rules, Table | InlineTable):  # a single rule without brackets
        return rules
    if not isinstance(rules, AoT | Array):
        array = tomlkit.array()
        array.append(str(rules))
        document[side] = array
        rules = document[side]
    for index, rule in enumerate(rules):
        own = rule.get("name", "") if isinstance(rule, Table | InlineTable) else rule
        if " ".join(str(own).split()) == name:
            if not isinstance(rule, Table | InlineTable):
                rules[index] = _named(str(rule))
            found: Table | InlineTable = rules[index]
            return found
    raise ConfigError(f"rule {name!r} is not in the file")


def _named(name: str) -> InlineTable:
    table = tomlkit.inline_table()
    table["name"] = name
    return table


def _add(rule: Table | InlineTable, found: Expansion) -> None:
    for key, entries in (("examples", found.includes), ("counterexamples", found.near_misses)):
        if not entries:
            continue
        own: Any = rule.get(key)
        if isinstance(own, str):  # one without brackets
            own = [str(own)]
        if isinstance(rule, InlineTable):  # stands on one line
            array = tomlkit.array()
            array.extend([*(own or ()), *entries])
            rule[key] = array
            continue
        if not isinstance(own, Array):
            array = tomlkit.array()
            array.extend(own or ())
            rule[key] = array
            own = rule[key]
        own.multiline(True)
        own.add_line(comment=_NOTE)
        for entry in entries:
            own.add_line(entry)
        own.add_line(indent="")
