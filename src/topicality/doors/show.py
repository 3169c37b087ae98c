"""What people see: verdicts, bars, tables, histograms, progress. Colour only on a terminal; user text is never markup."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from topicality.types import RuleScore, Verdict

_COLOUR = {"allow": "green", "flag": "yellow", "redirect": "magenta", "block": "red"}
_WIDTH = 24


def console(error: bool = False) -> Console:
    """A console on the current standard stream; wide enough not to wrap when it is not a terminal."""
    stream = sys.stderr if error else sys.stdout
    return Console(file=stream, highlight=False, markup=False, soft_wrap=True, width=None if stream.isatty() else 120)


def plain(text: str, limit: int = 400) -> str:
    """A text safe to print: control characters (terminal escapes) become visible, long texts are shortened."""
    shown = "".join(char if char.isprintable() or char == " " else repr(char)[1:-1] for char in text[: limit + 1])
    return shown if len(text) <= limit else shown[:limit] + "…"


def bar(value: float, mark: float | None = None, width: int = _WIDTH) -> str:
    """A bar for a number in [0, 1], with a mark where a threshold is."""
    filled = round(min(max(value, 0.0), 1.0) * width)
    cells = ["█" if index < filled else "·" for index in range(width)]
    if mark is not None:
        cells[min(int(min(max(mark, 0.0), 1.0) * width), width - 1)] = "│"
    return "".join(cells)


def verdict(text: str, answer: Verdict) -> None:
    """One message and its verdict in a few lines."""
    out = console()
    out.print(_badge(answer), Text(" "), Text(plain(text, 160)), sep="")
    _details(out, answer, "         ")


def turn(text: str, answer: Verdict) -> None:
    """A user's message in a conversation, its verdict, and a bar for each of the best rules."""
    out = console()
    out.print()
    out.print(Text("user      ", style="bold"), Text(plain(text)), sep="")
    out.print(
        Text("          "), _badge(answer), Text(f" {answer.reason_code}: {plain(answer.reason)}", style="dim"), sep=""
    )
    for score in answer.scores[:3]:
        out.print(Text("          "), _rule_bar(score), sep="")
    if answer.reply:
        out.print(Text("          reply: ", style="dim"), Text(plain(answer.reply)), sep="")


def answer(text: str) -> None:
    """An assistant's message in a conversation."""
    console().print(Text("assistant ", style="bold blue"), Text(plain(text), style="blue"), sep="")


def heading(title: str, allowed: Sequence[str], blocked: Sequence[str]) -> None:
    """What the policy is about, before a conversation."""
    out = console()
    out.print(Text(title, style="bold"))
    out.print(Text("allowed: ", style="green"), Text(", ".join(allowed) or "any topic"), sep="")
    out.print(Text("blocked: ", style="red"), Text(", ".join(blocked) or "nothing"), sep="")


def hints(lines: Sequence[str]) -> None:
    """Advice on standard error, so that output can be piped."""
    for line in lines:
        console(error=True).print(Text("hint: ", style="bold"), Text(plain(line)), sep="")


def failure(error: Exception, code: int) -> int:
    """An error as one line on standard error; returns the exit code."""
    console(error=True).print(Text("error: ", style="bold red"), Text(plain(str(error), 2000)), sep="")
    return code


def guard_figures(reports: dict[str, dict[str, Any]], mean: dict[str, Any]) -> None:
    """Figures of `eval guard` as a table, with what the guard did to each label and source."""
    out = console()
    table = Table(title="guard", title_style="bold")
    for name in ("data", "n", "AUROC off-topic", "AUROC blocked", "FPR@95", "balanced", "ECE", "ms p50", "ms p95"):
        table.add_column(name, justify="left" if name == "data" else "right")
    for name, report in reports.items():
        table.add_row(
            plain(name),
            str(report["n"]),
            *_figures(report),
            *(f"{report['ms_per_message'][k]:.2f}" for k in ("p50", "p95")),
        )
    if len(reports) > 1:
        table.add_row("mean", "", *_figures(mean), "", "", style="bold")
    out.print(table)
    if len(reports) == 1:
        report = next(iter(reports.values()))
        for label, counts in report["confusion"].items():
            out.print(Text(f"  {label:10} " + ", ".join(f"{action} {count}" for action, count in counts.items())))
        for source, counts in report["by_source"].items():
            out.print(
                Text(f"  {plain(source, 24):24} {bar(counts['right'])} {counts['right']:.0%} right of {counts['n']}")
            )


def calibration(report: dict[str, Any], wrong: int) -> None:
    """A calibration report: figures before and after, histograms of both labels, the worst rows."""
    out = console()
    out.print(Text(f"target: {report['target']}; rows: " + ", ".join(f"{k} {v}" for k, v in report["rows"].items())))
    for side, figures in report["sides"].items():
        if "skipped" in figures:
            out.print(Text(f"{side}: not fitted, {figures['skipped']}", style="yellow"))
            continue
        table = Table(
            title=f"{side} rules ({figures['n']} rows, each judged by a fit that did not see it)", title_style="bold"
        )
        for name in ("", "before", "after"):
            table.add_column(name, justify="right" if name else "left")
        for key, name in (
            ("auroc", "AUROC"),
            ("balanced_accuracy", "balanced accuracy"),
            ("calibration_error", "calibration error"),
        ):
            table.add_row(name, *(_number(figures[key][when]) for when in ("before", "after")))
        table.add_row("threshold", "", _number(figures["threshold"]))
        table.add_row("precision / recall", "", f"{_number(figures['precision'])} / {_number(figures['recall'])}")
        table.add_row("belong, but missed", "", f"{figures['belonging_missed']:.1%}")
        table.add_row("others that met it", "", f"{figures['others_met']:.1%}")
        out.print(table)
        _histogram(out, figures)
        for row in figures["wrong"][: max(wrong, 0)]:
            out.print(Text(f"  wrong: {row['label']:9} p={row['probability']:.2f}  {plain(row['text'], 90)}"))
        hidden = len(figures["wrong"]) - max(wrong, 0)
        if hidden > 0:
            out.print(Text(f"  … and {hidden} more (--wrong {len(figures['wrong'])})", style="dim"))


@contextmanager
def progress(what: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[int], None] | None]:
    """A progress bar on standard error for work of more than a moment; nothing when quiet or not a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(plain(what), total=total)
        yield lambda done: shown.update(task, completed=done)


@contextmanager
def busy(what: str, *, quiet: bool = False) -> Iterator[None]:
    """A spinner on standard error; nothing when quiet or not a terminal."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(plain(what)):
        yield


def _badge(answer: Verdict) -> Text:
    return Text(f"{answer.action.upper():8}", style=f"bold {_COLOUR[answer.action]}")


def _details(out: Console, answer: Verdict, indent: str) -> None:
    out.print(Text(f"{indent}{answer.reason_code}: {plain(answer.reason)}", style="dim"))
    if answer.score is not None and answer.threshold is not None:
        met = "met" if answer.score >= answer.threshold else "not met"
        out.print(
            Text(f"{indent}score {answer.score:.3f}, threshold {answer.threshold:.3f} ({met})")
            + Text(
                ""
                if answer.probability is None
                else f", probability {answer.probability:.2f} {bar(answer.probability)}"
            )
        )
    extras = []
    if answer.runner_up is not None:
        extras.append(f"runner-up {answer.runner_up.side} {answer.runner_up.rule!r} {answer.runner_up.probability:.2f}")
    if answer.status != "checked":
        extras.append(f"status {answer.status}")
    extras += answer.notes
    if extras:
        out.print(Text(indent + plain("; ".join(extras)), style="dim"))
    if answer.reply:
        out.print(Text(f"{indent}reply: {plain(answer.reply)}"))


def _rule_bar(score: RuleScore) -> Text:
    colour = "green" if score.side == "allowed" else "red"
    label = plain(score.rule, 22)
    return (
        Text(f"{label:22} ")
        + Text(bar(score.probability), style=colour)
        + Text(f" {score.probability:.2f}", style="dim")
    )


def _histogram(out: Console, figures: dict[str, Any]) -> None:
    belong, others = figures["histogram"]["belong"], figures["histogram"]["others"]
    most = max([*belong, *others, 1])
    bins = len(belong)
    cut = min(int(figures["threshold"] * bins), bins - 1)
    out.print(Text("  probability   belong                    others", style="dim"))
    for index in range(bins):
        mark = "─ threshold" if index == cut else ""
        left, right = round(belong[index] / most * _WIDTH), round(others[index] / most * _WIDTH)
        out.print(
            Text(f"  {index / bins:4.2f}-{(index + 1) / bins:4.2f}    ")
            + Text("█" * left + " " * (_WIDTH - left), style="green")
            + Text("  ")
            + Text("█" * right + " " * (_WIDTH - right), style="red")
            + Text(mark, style="dim")
        )


def _figures(report: dict[str, Any]) -> list[str]:
    names = ("auroc_off_topic", "auroc_blocked", "fpr_at_95_tpr", "balanced_accuracy", "calibration_error")
    return [_number(report[name]) for name in names]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
