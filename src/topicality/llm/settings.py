"""What a layer asks a language model for, and how long a message may wait for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from topicality.core.worker import Gates
from topicality.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Roles:
    """Which roles a layer's language model has.

    Attributes:
        judge: seconds that a message may wait for the judge; 0 leaves the judge out.
        labels: when the labeller looks at closed topics, and at how much of them; None leaves it out. No reply waits for it.
        label_timeout: seconds for one of its calls, in the background.
        select: seconds that `recall` and `context` of a conversation may wait for the selector where the call does not say
            itself; 0 asks none.
    Raises:
        ConfigError: a time is negative, not finite, or no number.
    """

    judge: float = 5.0
    labels: Gates | None = field(default_factory=Gates)
    label_timeout: float = 60.0
    select: float = 0.0

    def __post_init__(self) -> None:
        seconds("judge", self.judge)
        seconds("select", self.select)
        if seconds("label_timeout", self.label_timeout) == 0:
            raise ConfigError("cannot be used", key="label_timeout", got=0, accepted="seconds above 0")


def seconds(key: str, value: object) -> float:
    """A time to wait, checked. Raises ConfigError unless it is a finite number from 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ConfigError("cannot be used", key=key, got=value, accepted="seconds, a number from 0")
    return float(value)
