"""What a host writes down: topic rules and policies, from Python, TOML, YAML or JSON. Validated when made."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from topicality.errors import ConfigError
from topicality.types import Action

Side = Literal["allowed", "blocked"]
PRESETS = ("customer_support", "coding_assistant", "common_unsafe")


def _texts(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _explained(error) from None


class TopicRule(_Model):
    """One allowed or blocked topic.

    What a rule includes decides how well it works, far more than any threshold: list 5 to 15 things it covers in
    `description`, separated by commas, or give examples.

    Attributes:
        name: what the topic is called; unique within the policy (compared without case).
        description: what it includes. Each part of an enumeration is matched on its own.
        examples: messages that belong to the topic.
        counterexamples: near misses that do not belong to it.
        keywords: words or phrases (matched whole, inflected forms included) that decide on their own.
        threshold: own probability threshold, [0, 1]; a cosine in [-1, 1] when the policy's scoring is "cosine".
        reply: what to tell the user when this rule blocks or redirects.
    """

    name: str
    description: str = ""
    examples: Texts = ()
    counterexamples: Texts = ()
    keywords: Texts = ()
    threshold: float | None = None
    reply: str | None = None

    if TYPE_CHECKING:  # lists and bare strings are fine too, which the fields' types do not say

        def __init__(self, **values: Any) -> None: ...

    @field_validator("name")
    @classmethod
    def _named(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("a topic rule needs a name that is not blank")
        return " ".join(value.split())

    @field_validator("examples", "counterexamples", "keywords")
    @classmethod
    def _filled(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not text.strip() for text in value):
            raise ValueError("an entry is empty or blank; remove it")
        return tuple(dict.fromkeys(value))


def _rules(value: object) -> object:
    if isinstance(value, str | Mapping | TopicRule):
        value = [value]
    if isinstance(value, Sequence):
        return tuple({"name": entry} if isinstance(entry, str) else entry for entry in value)
    return value


Rules = Annotated[tuple[TopicRule, ...], BeforeValidator(_rules)]


class OnError(_Model):
    """What happens to a message that no tier could check, per side of the policy."""

    allowed: Literal["allow", "flag", "block"] = "flag"
    blocked: Literal["allow", "flag", "block"] = "block"


class FittedSide(_Model):
    """One side's fit: log-odds become slope · (log-odds + head · vector) + offset.

    Attributes:
        slope, offset: the map. head: base64 of D little-endian float32 numbers; "" for none.
        threshold: the side's own threshold from before the fit, kept so that it can be undone.
    """

    slope: float
    offset: float
    head: str = ""
    threshold: float


class Fitted(_Model):
    """What `calibrate` learned, with all that is needed to know whether it still applies.

    Attributes:
        space: the encoder the numbers belong to, as text; with another encoder the fit is left out, and verdicts say so.
        target: what the thresholds were fitted for. rows: labelled rows used, per label. on: ISO date of the fit.
        allowed, blocked: the sides that were fitted.
    """

    space: str
    target: str
    rows: dict[str, int]
    on: str
    allowed: FittedSide | None = None
    blocked: FittedSide | None = None


class Policy(_Model):
    """What a host allows and blocks, and what to do about the rest.

    An empty `allowed` means that any topic is allowed unless it is blocked.

    Attributes:
        allowed, blocked: topic rules; a bare string is a rule with only a name.
        off_topic_action: for messages on no allowed topic.
        blocked_action: for messages on a blocked topic.
        allowed_threshold: probability, [0, 1], from which a message counts as on an allowed topic (met at >=).
        follow_up_threshold: the same for a message that is read with what was said before. Higher by default: what was
            said before was mostly on topic, so more has to speak for a message that changes the subject.
        blocked_threshold: probability, [0, 1], from which it counts as on a blocked one (met at >=).
        scoring: "calibrated" (background-normalised probabilities) or "cosine": plain best-member cosine, where the
            two thresholds are cosines in [-1, 1] (the ancestors' rule; see docs/coming-from.md).
        borderline: probability band, both ends inclusive, in which a judge is asked.
        judge: when a configured judge is asked: in the band, for every message with a letter or digit in it (small talk
            and keyword hits too), or never. It makes no keyword of a blocked rule milder.
        small_talk: whether greetings, thanks and assent are allowed by themselves.
        context_turns: how many earlier messages a short or elliptical one is read with; 0 turns it off.
        direction: which messages are checked: the user's, the model's replies, or both.
        on_error: what happens when no tier can answer.
        on_uncovered: what happens to a language the encoder does not cover.
        replies: texts for the user, by "off_topic", "blocked", or a rule's name.
        background: extra everyday utterances of the host's own, added to the shipped background.
        fitted: written by `calibrate`.
    """

    name: str = ""
    allowed: Rules = ()
    blocked: Rules = ()
    off_topic_action: Action = "flag"
    blocked_action: Action = "block"
    allowed_threshold: float = 0.3
    follow_up_threshold: float = 0.5
    blocked_threshold: float = 0.3
    scoring: Literal["calibrated", "cosine"] = "calibrated"
    borderline: tuple[float, float] = (0.15, 0.6)
    judge: Literal["borderline", "always", "never"] = "borderline"
    small_talk: bool = True
    context_turns: int = Field(default=4, ge=0, le=50)
    direction: Literal["input", "output", "both"] = "both"
    on_error: OnError = OnError()
    on_uncovered: Action = "flag"
    replies: dict[str, str] = Field(default_factory=dict)
    background: Texts = ()
    fitted: Fitted | None = None

    if TYPE_CHECKING:  # see TopicRule

        def __init__(self, **values: Any) -> None: ...

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        seen: dict[str, str] = {}
        for side, rule in self.sided():
            key = rule.name.casefold()
            if key in seen:
                raise ValueError(
                    f"{side}: rule {rule.name!r} is there twice (also under {seen[key]}); names are unique"
                )
            seen[key] = side
            if rule.threshold is not None:
                self._bounded(f"{side} rule {rule.name!r}: threshold", rule.threshold)
        self._bounded("allowed_threshold", self.allowed_threshold)
        self._bounded("follow_up_threshold", self.follow_up_threshold)
        self._bounded("blocked_threshold", self.blocked_threshold)
        if self.blocked_action == "allow":
            raise ValueError(
                "blocked_action: got 'allow'; accepted: flag, redirect, block (drop the blocked rules instead)"
            )
        low, high = self.borderline
        if not 0.0 <= low <= high <= 1.0:
            raise ValueError(
                f"borderline: got {list(self.borderline)}; accepted: two probabilities, low <= high, in [0, 1]"
            )
        unknown = {key for key in self.replies if key not in ("off_topic", "blocked") and key.casefold() not in seen}
        if unknown:
            raise ValueError(f"replies: unknown {sorted(unknown)}; accepted: off_topic, blocked, or the name of a rule")
        return self

    def _bounded(self, what: str, value: float) -> None:
        low = -1.0 if self.scoring == "cosine" else 0.0
        if not low <= value <= 1.0 or math.isnan(value):
            unit = "cosine" if self.scoring == "cosine" else "probability"
            raise ValueError(f"{what}: got {value}; accepted: a {unit} in [{low:g}, 1]")

    def sided(self) -> list[tuple[Side, TopicRule]]:
        """All rules with their side, allowed first."""
        return [("allowed", rule) for rule in self.allowed] + [("blocked", rule) for rule in self.blocked]

    def unfitted(self) -> Policy:
        """This policy as it was before `calibrate`."""
        if self.fitted is None:
            return self
        values = {**_plain(self), "fitted": None}
        if self.fitted.allowed:
            values["allowed_threshold"] = self.fitted.allowed.threshold
            values["follow_up_threshold"] = type(self).model_fields["follow_up_threshold"].default
        if self.fitted.blocked:
            values["blocked_threshold"] = self.fitted.blocked.threshold
        return Policy(**values)

    def threshold(self, side: Side, rule: TopicRule) -> float:
        """The rule's own threshold, or else its side's."""
        default = self.allowed_threshold if side == "allowed" else self.blocked_threshold
        return default if rule.threshold is None else rule.threshold

    def with_rules_of(self, other: Policy) -> Policy:
        """This policy plus the rules of another, such as a preset of things to block."""
        return Policy(
            **{**_plain(self), "allowed": self.allowed + other.allowed, "blocked": self.blocked + other.blocked}
        )

    def hints(self) -> list[str]:
        """What would most improve this policy, in plain words; empty when nothing stands out."""
        thin = [rule.name for _, rule in self.sided() if not rule.examples and _parts(rule.description) < 4]
        if not thin:
            return []
        names = ", ".join(repr(name) for name in thin[:3]) + (f" and {len(thin) - 3} more" if len(thin) > 3 else "")
        advice = "list what the topic includes (5 to 15 things, separated by commas, in `description`) or add examples"
        return [f"{names}: {advice}; nothing else improves verdicts as much"]

    @classmethod
    def load(cls, source: str | Path) -> Policy:
        """Read a policy file (.toml, .yaml, .yml, .json), or a preset by name (see `PRESETS`).

        Raises:
            ConfigError: unreadable or malformed (with line and column), unknown key, or a value out of range.
        """
        name = str(source)
        if name in PRESETS:
            from importlib.resources import files

            return cls.parse(files("topicality").joinpath("presets", f"{name}.toml").read_text("utf-8"), "toml", name)
        path = Path(source)
        kind = path.suffix.lower().lstrip(".")
        if kind not in _READERS:
            raise ConfigError(
                f"{name}: cannot tell the format",
                got=path.suffix,
                accepted=f".toml, .yaml, .yml, .json, or {', '.join(PRESETS)}",
            )
        try:
            text = path.read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name}: cannot be read ({error})") from error
        return cls.parse(text, kind, name)

    @classmethod
    def parse(cls, text: str, kind: str, name: str = "") -> Policy:
        """Read a policy from text; `kind` is "toml", "yaml" or "json", `name` (a path) is used in messages.

        A policy that has no name of its own is called after the file.

        Raises:
            ConfigError: see `load`.
        """
        stem, name = Path(name).stem, name or "policy"
        if kind not in _READERS:
            raise ConfigError(f"{name}: unknown format", got=kind, accepted="toml, yaml, json")
        try:
            values = _READERS[kind](text, name)
        except RecursionError as error:
            raise ConfigError(f"{name}: not usable {kind.upper()}, nested too deeply") from error
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"{name}: a policy is a table of keys", got=type(values).__name__, accepted="allowed, blocked, …"
            )
        try:
            return cls(**{"name": stem, **{str(key): value for key, value in values.items()}})
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}", key=None) from None

    def dump(self) -> dict[str, Any]:
        """Plain values, only what differs from the defaults; `parse` of their JSON gives the policy back."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def dumps(self, file: str | Path) -> str:
        """The policy as text, in the format that a file's name says; `load` gives it back.

        Raises:
            ConfigError: the name ends in none of .toml, .yaml, .yml, .json.
        """
        kind = Path(file).suffix.lower()
        if kind == ".json":
            return json.dumps(self.dump(), ensure_ascii=False, indent=2) + "\n"
        if kind in (".yaml", ".yml"):
            import yaml

            return str(yaml.safe_dump(self.dump(), allow_unicode=True, sort_keys=False))
        if kind == ".toml":
            import tomlkit

            return tomlkit.dumps(self.dump())
        raise ConfigError("cannot tell the format", key="file", got=Path(file).name, accepted=".json, .yaml, .toml")


def _plain(policy: Policy) -> dict[str, Any]:
    return {key: getattr(policy, key) for key in type(policy).model_fields}


def _parts(description: str) -> int:
    return len([part for part in description.replace(";", ",").replace(":", ",").split(",") if part.strip()])


def _explained(error: ValidationError) -> ConfigError:
    lines = []
    for entry in error.errors(include_url=False):
        where = ".".join(str(step) for step in entry["loc"])
        if entry["type"] == "extra_forbidden":
            lines.append(f"{where}: unknown key; check the spelling against the documentation")
        else:
            message = entry["msg"].removeprefix("Value error, ")
            got = (
                ""
                if entry["type"] == "value_error" or entry["type"] == "missing"
                else f" (got {_shown(entry['input'])})"
            )
            lines.append(f"{where}: {message}{got}" if where else f"{message}{got}")
    first = error.errors(include_url=False)[0]["loc"]
    failure = ConfigError("; ".join(lines))
    failure.key = ".".join(str(step) for step in first) or None
    return failure


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _toml(text: str, name: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        lines = text.split("\n")
        end = f"at line {len(lines)}, column {len(lines[-1]) + 1}, the end of the document"
        raise ConfigError(f"{name}: not valid TOML ({str(error).replace('at end of document', end)})") from error
    except ValueError as error:  # such as a whole number of thousands of digits
        raise ConfigError(f"{name}: not usable TOML ({error})") from error


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}: not valid JSON, line {error.lineno} column {error.colno} ({error.msg})") from error
    except ValueError as error:  # such as a whole number of thousands of digits
        raise ConfigError(f"{name}: not usable JSON ({error})") from error


def _yaml(text: str, name: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1} column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{name}: not valid YAML{where} ({getattr(error, 'problem', error)})") from error
    except ValueError as error:  # such as the 99th of a month
        raise ConfigError(f"{name}: not usable YAML ({error})") from error


_READERS = {"toml": _toml, "json": _json, "yaml": _yaml, "yml": _yaml}
