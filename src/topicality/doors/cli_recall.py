"""The command `eval recall`. Registered on the command line's own app."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from topicality.doors import show
from topicality.errors import ConfigError


def register(measure: typer.Typer) -> None:
    """Put the command on the app of `eval`."""
    measure.command("recall")(eval_recall)


def eval_recall(
    data: Annotated[list[Path], typer.Option("--data", "-d", help="Conversations with questions; may be repeated.")],
    budgets: Annotated[str, typer.Option("--budgets", help="Tokens of the evidence text, joined by commas.")] = (
        "500,1000,2000,4000"
    ),
    encoder: Annotated[
        str, typer.Option("--encoder", help="minilm (bundled), openai:MODEL[@BASE_URL], or st:PATH_OR_NAME.")
    ] = "minilm",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")
    ] = False,
) -> None:
    """Measure recall: how much of the evidence for questions is found within a token budget, and how fast."""
    from topicality.embed import load
    from topicality.layer.evaluate_recall import evaluate_recall, mean_of_recalls, read_conversations

    wanted = _numbers(budgets)
    embedder = load(encoder, cache=65536)
    reports: dict[str, Any] = {}
    for path in dict.fromkeys(data):
        conversations = read_conversations(path)
        total = sum(len(conversation.questions) for conversation in conversations)
        with show.progress(path.name, total, quiet=as_json) as advance:
            reports[str(path)] = evaluate_recall(conversations, embedder, wanted, advance)
    found = list(reports.values())
    mean = mean_of_recalls(found)
    result = (
        found[0]
        if len(found) == 1
        else {
            "questions": sum(report["questions"] for report in found),
            "budgets": mean,
            "mean": mean,
            "llm_calls": 0,
            "encoder": embedder.space.name,
            "files": reports,
        }
    )
    if as_json:
        sys.stdout.write(json.dumps(result, ensure_ascii=False) + "\n")
        sys.stdout.flush()
    else:
        _figures(reports, mean)


def _numbers(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise ConfigError(
            "cannot be used", key="--budgets", got=text, accepted="whole numbers from 1, such as 500,1000"
        )
    return list(dict.fromkeys(found))


def _figures(reports: dict[str, Any], mean: dict[str, Any]) -> None:
    out = show.console()
    table = Table(title="recall: evidence found, %", title_style="bold")
    for name in ("data", "questions", *mean, "ms p50", "ms p95"):
        table.add_column(name, justify="left" if name == "data" else "right")
    for name, report in reports.items():
        spent = report["ms_per_question"]
        shares = (f"{100 * report['budgets'][budget]['evidence_recall']:.1f}" for budget in mean)
        table.add_row(show.plain(name), str(report["questions"]), *shares, f"{spent['p50']:.1f}", f"{spent['p95']:.1f}")
    if len(reports) > 1:
        table.add_row("mean", "", *(f"{100 * value['evidence_recall']:.1f}" for value in mean.values()), style="bold")
    for report in list(reports.values()) if len(reports) == 1 else []:
        for category, figures in report["by_category"].items():
            shares = (f"{100 * figures[budget]['evidence_recall']:.1f}" for budget in mean)
            table.add_row(f"  {show.plain(category)}", str(figures["questions"]), *shares, "", "", style="dim")
    out.print(table)
