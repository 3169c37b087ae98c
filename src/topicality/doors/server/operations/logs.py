"""Lines for people or for machines. No text of a message, no query string; whatever a client chose is escaped."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from topicality.doors.server.problems import where

ACCESS = "topicality.access"
_FIELDS = ("request", "method", "route", "status", "ms", "key", "action", "reason", "error", "cut")
_TRACE = "trace"


def configuration(kind: str) -> dict[str, Any]:
    """For `logging.config.dictConfig`: this project's and the HTTP server's lines, to standard error.

    Args:
        kind: "json", "text" or "off".
    """
    level = "CRITICAL" if kind == "off" else "INFO"
    logger = {"handlers": ["err"], "level": level, "propagate": False}
    form = {"()": f"{__name__}.{'JsonLines' if kind == 'json' else 'TextLines'}"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": form},
        "handlers": {"err": {"class": "logging.StreamHandler", "stream": "ext://sys.stderr", "formatter": "lines"}},
        "loggers": {"topicality": logger, "uvicorn": {**logger, "level": "CRITICAL" if kind == "off" else "WARNING"}},
    }


class _Lines(logging.Formatter):
    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """What a line has besides time, level and message."""
        return {name: value for name in _FIELDS if (value := getattr(record, name, "")) not in ("", None)}

    def when(self, record: logging.LogRecord) -> str:
        """UTC, to the millisecond."""
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def trace(self, record: logging.LogRecord) -> str:
        """Where an error happened; "" for other lines. Its own words are left out unless they are ours."""
        error = record.exc_info[1] if record.exc_info else None
        return where(error) if error is not None else str(getattr(record, _TRACE, ""))


class JsonLines(_Lines):
    """One JSON object a line, ASCII only."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {
            "time": self.when(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
            **self.fields(record),
        }
        if trace := self.trace(record):
            line[_TRACE] = trace
        return json.dumps(line, default=str)


class TextLines(_Lines):
    """One line to read; a failure is followed by where it happened."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        told = " ".join(f"{name}={printable(value)}" for name, value in self.fields(record).items())
        parts = (self.when(record), record.levelname.ljust(7), printable(record.getMessage()), told)
        line = " ".join(part for part in parts if part)
        trace = self.trace(record)
        return f"{line}\n{trace}" if trace else line


def printable(value: object) -> str:
    """A value without anything that a terminal would obey."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in text)
