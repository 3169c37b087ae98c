"""What people see of topics: bands of colour, a line for a message that is watched, figures. User text is never markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from topicality.doors.show import console, plain
from topicality.types import Message

if TYPE_CHECKING:
    from topicality.core.segment import Segmentation
    from topicality.layer.watching import Watched

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red", "bright_cyan", "bright_green", "bright_yellow",
            "bright_magenta", "bright_blue", "bright_red")  # fmt: skip
_ACTIONS = {"allow": "green", "flag": "yellow", "redirect": "magenta", "block": "red"}
_SHOWN = 110


def bands(title: str, messages: Sequence[Message], found: Segmentation, labels: Mapping[int, tuple[str, ...]]) -> None:
    """A transcript as bands: a heading for each segment, a bar of its topic's colour before each message."""
    out = console()
    topics = len(set(found.topics))
    out.print(Text(plain(title, 120), style="bold"), Text(_counts(len(messages), len(found.segments), topics)), sep="")
    for line in ((f"fallback: {found.fallback}",) if found.fallback else ()) + found.notes:
        out.print(Text(f"  {plain(line, 300)}", style="dim"))
    seen: set[int] = set()
    before: int | None = None
    for part in found.segments:
        style = _COLOURS[part.topic % len(_COLOURS)]
        name = ", ".join(labels.get(part.topic, ())) or "small talk"
        how = "" if part.topic not in seen else " (goes on)" if part.topic == before else " (returns)"
        span = f"{part.first + 1}" if part.first == part.last else f"{part.first + 1}-{part.last + 1}"
        out.print(
            Text("┌ ", style=style),
            Text(f"topic {part.topic + 1}: {plain(name, 80)}{how}", style=f"bold {style}"),
            Text(f"  {span}", style="dim"),
            sep="",
        )
        for message in messages[part.first : part.last + 1]:
            who = plain(message.name or message.role, 14)
            text = " ".join(message.text.split())
            shown = text if len(text) <= _SHOWN else text[: _SHOWN - 1].rsplit(" ", 1)[0] + " …"
            out.print(Text("│ ", style=style), Text(f"{who:14} ", style="dim"), Text(plain(shown)), sep="")
        seen.add(part.topic)
        before = part.topic
    out.print()


def watched(turn: Watched) -> None:
    """One line for a message: verdict, drift, topic."""
    out = console()
    cells = []
    if turn.verdict is not None:
        colour = _ACTIONS[turn.verdict.action]
        cells.append(Text(f"{turn.verdict.action.upper():8} ", style=f"bold {colour}"))
        cells.append(Text(f"{turn.verdict.reason_code:14} ", style="dim"))
    if turn.drift is not None:
        alarm = " ALARM" if turn.drift.alarm else ""
        cells.append(Text(f"drift {turn.drift.level:.2f}{alarm:6} ", style="bold red" if alarm else "dim"))
    decision = turn.decision
    style = _COLOURS[decision.topic % len(_COLOURS)]
    cells.append(Text(f"topic {decision.topic + 1:<3} {decision.kind:8} ", style=style))
    revised = [f"message {each.index + 1} is topic {each.topic + 1}" for each in decision.previous if each.revised]
    cells.append(Text(plain(" ".join(turn.message.text.split()), 70)))
    if revised:
        cells.append(Text(f"  (revised: {', '.join(revised)})", style="dim"))
    out.print(*cells, sep="")


def segment_figures(reports: Mapping[str, Mapping[str, Any]], mean: Mapping[str, Any]) -> None:
    """Figures of `eval segment` as a table."""
    table = Table(title="segment", title_style="bold")
    names = ("data", "dialogues", "Pk", "WD", "F1", "score", "gold rate", "rate", "returns P", "R", "1-1", "B3", "links",
             "ms p50")  # fmt: skip
    for name in names:
        table.add_column(name, justify="left" if name == "data" else "right")
    for name, report in reports.items():
        table.add_row(plain(name), str(report["dialogues"]), *_figures(report))
    if len(reports) > 1:
        table.add_row("mean", "", *_figures(mean), style="bold")
    console().print(table)


def _figures(report: Mapping[str, Any]) -> list[str]:
    keys = ("pk", "window_diff", "f1", "score")
    later = ("return_precision", "return_recall", "topic_one_to_one", "topic_b3_f1", "link_f")
    values = [report[key] for key in keys]
    values += [report["boundary_rate"][key] for key in ("gold", "predicted")]
    values += [report[key] for key in later]
    return [
        *("-" if value is None else f"{value:.3f}" for value in values),
        f"{report['ms_per_message']['p50'] or 0:.2f}",
    ]


def _counts(messages: int, segments: int, topics: int) -> str:
    def counted(number: int, word: str) -> str:
        return f"{number} {word}" if number == 1 else f"{number} {word}s"

    return f"  {counted(messages, 'message')}, {counted(segments, 'segment')}, {counted(topics, 'topic')}"
