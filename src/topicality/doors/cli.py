"""The command line. Thin: reads arguments, calls the layer, prints; exit codes 0 ok, 1 off-topic, 2 caller, 3 backend."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from topicality import __version__
from topicality.config import Policy
from topicality.doors import cli_llm, cli_mcp, cli_memory, cli_recall, cli_segment, cli_server, show
from topicality.doors.cli_llm import JudgeOption, LlmOption, PromptsOption, UrlOption
from topicality.doors.options import EncoderOption, JsonOption, print_line
from topicality.errors import ConfigError, EmbedError, InputError, LlmError, StoreError, TopicalityError

app = typer.Typer(
    name="topicality",
    help="The topic layer for LLM conversations: keep a chat on its topics. Local; no key, no download.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
measure = typer.Typer(help="Measure quality on labelled data.", no_args_is_help=True)
app.add_typer(measure, name="eval")
cli_segment.register(app, measure)
cli_recall.register(measure)
cli_llm.register(app)
cli_memory.register(app)
cli_server.register(app)
cli_mcp.register(app)

PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy",
        "-p",
        help="Policy file (.toml, .yaml, .json), or customer_support, coding_assistant, common_unsafe.",
    ),
]


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"topicality {__version__}")
        raise typer.Exit


@app.command()
def check(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Messages; without any, one a line from standard input: a text, or JSON with text and context."
        ),
    ] = None,
    policy: PolicyOption = None,
    allow: Annotated[list[str] | None, typer.Option("--allow", "-a", help="An allowed topic; may be repeated.")] = None,
    block: Annotated[list[str] | None, typer.Option("--block", "-b", help="A blocked topic; may be repeated.")] = None,
    context: Annotated[
        list[str] | None, typer.Option("--context", "-c", help="What was said before, oldest first; may be repeated.")
    ] = None,
    role: Annotated[str, typer.Option(help="Who says it: user or assistant.")] = "user",
    encoder: EncoderOption = "minilm",
    llm: LlmOption = None,
    llm_url: UrlOption = None,
    judge: JudgeOption = None,
    prompts: PromptsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check messages against a policy. Exit code 1 if any is flagged, redirected or blocked."""
    chosen = cli_llm.judged_by(_policy(policy, allow, block), judge)
    if role not in ("user", "assistant"):
        raise ConfigError("unknown role", key="--role", got=role, accepted="user, assistant")
    from topicality.layer.guard import Guard

    model = cli_llm.asker(llm, llm_url, prompts)
    guard = Guard(chosen, encoder, judge=model)
    rows = [(text, context or []) for text in texts] if texts else None
    worst = False
    for batch in [rows] if rows is not None else _batches(_lines(context or [])):
        verdicts = guard.check_many([text for text, _ in batch], [said for _, said in batch], role=role)
        for (text, _), verdict in zip(batch, verdicts, strict=True):
            worst = worst or verdict.action != "allow"
            if as_json:
                _json(verdict.to_dict())
            else:
                show.verdict(text, verdict)
    if not as_json:
        cli_llm.cost(model)
        show.hints(chosen.hints() if sys.stdout.isatty() else [])
    if worst:
        raise typer.Exit(1)


@app.command()
def demo(policy: PolicyOption = None, encoder: EncoderOption = "minilm", as_json: JsonOption = False) -> None:
    """A support conversation on screen: each message, its verdict, score bars, and why."""
    from importlib.resources import files

    from topicality.layer.guard import Guard

    story = json.loads(files("topicality").joinpath("presets").joinpath("demo.json").read_text("utf-8"))
    chosen = Policy.load(policy) if policy else Policy.load(story["policy"]).with_rules_of(Policy.load("common_unsafe"))
    guard = Guard(chosen, encoder)
    if not as_json:
        show.heading(
            f"A conversation under the policy {chosen.name!r}",
            [rule.name for rule in chosen.allowed],
            [rule.name for rule in chosen.blocked],
        )
    said: list[dict[str, str]] = []
    for message in story["messages"]:
        if message["role"] == "user":
            verdict = guard.check(message["text"], said)
            if as_json:
                _json({"text": message["text"], **verdict.to_dict()})
            else:
                show.turn(message["text"], verdict)
            if verdict.action == "block":
                continue  # what is blocked does not become context
        elif not as_json:
            show.answer(message["text"])
        said.append(message)


@app.command()
def calibrate(
    policy: Annotated[str, typer.Argument(help="Policy file.")],
    labelled: Annotated[
        list[Path], typer.Argument(help='JSONL: {"text", "label": allowed|off_topic|blocked, "context"?} a line.')
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Where to write the fitted policy (.json, .yaml, .toml); default: POLICY.fitted.json.",
        ),
    ] = None,
    max_flagged: Annotated[
        float | None, typer.Option(help="Target: at most this share of on-topic messages is flagged, such as 0.02.")
    ] = None,
    max_passed: Annotated[
        float | None, typer.Option(help="Target: at most this share of the other messages passes.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report.")] = False,
    wrong: Annotated[int, typer.Option(help="How many wrong rows to list.")] = 10,
    encoder: EncoderOption = "minilm",
    as_json: JsonOption = False,
) -> None:
    """Fit a policy's thresholds and probabilities to labelled messages, and write the fitted policy."""
    from datetime import UTC, datetime

    from topicality.core.calibrate import Target
    from topicality.layer.calibration import calibrate as fit
    from topicality.layer.evaluate import read_rows

    if max_flagged is not None and max_passed is not None:
        raise ConfigError("one target at a time: give --max-flagged or --max-passed")
    target = Target()
    if max_flagged is not None:
        target = Target("flagged", max_flagged)
    elif max_passed is not None:
        target = Target("passed", max_passed)
    rows = [row for path in labelled for row in read_rows(path)]
    with show.busy(f"fitting on {len(rows)} messages", quiet=as_json):
        result = fit(
            Policy.load(policy), rows, embedder=encoder, target=target, on=datetime.now(UTC).date().isoformat()
        )
    where = output or Path(policy).with_suffix(".fitted.json")
    if not dry_run:
        _write(where, result.policy)
    if as_json:
        _json({**result.report, "written": None if dry_run else str(where)})
    else:
        show.calibration(result.report, wrong)
        print_line("nothing written (--dry-run)" if dry_run else f"written: {where}")


@measure.command("guard")
def eval_guard(
    policy: Annotated[
        list[str], typer.Option("--policy", "-p", help="Policy file; one for all data, or one for each.")
    ],
    data: Annotated[list[Path], typer.Option("--data", "-d", help="Labelled JSONL; may be repeated.")],
    encoder: EncoderOption = "minilm",
    llm: LlmOption = None,
    llm_url: UrlOption = None,
    judge: JudgeOption = None,
    prompts: PromptsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a guard: AUROC, balanced accuracy, confusion, calibration error, time a message; and what a judge changes."""
    from topicality.layer.evaluate import evaluate_guard, mean_of, read_rows
    from topicality.layer.guard import Guard

    if len(policy) not in (1, len(data)):
        raise ConfigError(
            "policies and data do not pair up", key="--policy", got=len(policy), accepted=f"1 or {len(data)}"
        )
    reports: dict[str, Any] = {}
    for index, path in enumerate(data):
        rows = read_rows(path)
        chosen = cli_llm.judged_by(Policy.load(policy[index if len(policy) > 1 else 0]), judge)
        guard = Guard(chosen, encoder, judge=cli_llm.asker(llm, llm_url, prompts))
        with show.progress(path.name, len(rows), quiet=as_json) as advance:
            reports[str(path)] = evaluate_guard(guard, rows, advance)
    found = list(reports.values())
    result = (
        found[0] if len(found) == 1 else {"n": sum(r["n"] for r in found), "mean": mean_of(found), "files": reports}
    )
    if as_json:
        _json(result)
    else:
        show.guard_figures(reports, mean_of(found))
        for report in found:
            if "judge" in report:
                cli_llm.judge_figures(report)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without the letter shows its number; JSON stays JSON
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(args=arguments, standalone_mode=False)
        sys.stdout.flush()
        return int(code) if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted\n")
        return 130
    except (BrokenPipeError, SystemExit) as stop:
        # The reader (head, less) went away, of which typer and rich make an exit: nobody is left to tell.
        if isinstance(stop, SystemExit) and not isinstance(stop.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # keeps the interpreter's last flush quiet
        return 0
    except TopicalityError as error:
        return show.failure(error, 3 if isinstance(error, EmbedError | LlmError | StoreError) else 2)
    except Exception as error:
        if isinstance(error, typer.Exit):
            return error.exit_code
        if type(error).__module__.startswith(("typer", "click")) and hasattr(error, "show"):
            error.show()
            return int(getattr(error, "exit_code", 2))
        raise


def _policy(policy: str | None, allow: Iterable[str] | None, block: Iterable[str] | None) -> Policy:
    base = Policy.load(policy) if policy else Policy(name="command line")
    chosen = base.with_rules_of(Policy(allowed=allow or [], blocked=block or []))
    if not chosen.allowed and not chosen.blocked:
        raise ConfigError("no topics to check against: give --policy, --allow or --block")
    return chosen


def _lines(context: list[str]) -> Iterator[tuple[str, list[Any]]]:
    from topicality.layer.reading import text_of

    if sys.stdin is None:  # closed by the caller
        return
    if sys.stdin.isatty():
        sys.stderr.write("one message a line; end with Ctrl-D\n")
    for number, raw in enumerate(sys.stdin.buffer, start=1):
        line = raw.decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r\n")
        if not line.lstrip().startswith("{"):
            yield line, list(context)
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"standard input, line {number}: not valid JSON ({error})") from error
        if not isinstance(value.get("text"), str):
            raise InputError(f'standard input, line {number}: a JSON line needs a "text" that is a string')
        said = value.get("context") or []
        if not isinstance(said, list):
            raise InputError(f'standard input, line {number}: "context" must be a list of turns')
        try:
            for turn in said:
                text_of(turn)
        except InputError as error:
            raise InputError(f"standard input, line {number}: {error}") from error
        yield value["text"], [*context, *said]


def _batches(rows: Iterator[tuple[str, list[Any]]]) -> Iterator[list[tuple[str, list[Any]]]]:
    """Many at once from a file, which is faster; one at a time from a pipe, which may be waiting for the answer."""
    size = 64 if sys.stdin is not None and _is_file(sys.stdin.fileno()) else 1
    batch: list[tuple[str, list[Any]]] = []
    for row in rows:
        batch.append(row)
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch


def _is_file(descriptor: int) -> bool:
    import stat

    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def _write(path: Path, policy: Policy) -> None:
    text = policy.dumps(path)
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error})") from error


def _json(value: dict[str, Any]) -> None:
    ascii_only = (sys.stdout.encoding or "").replace("-", "").casefold() != "utf8"
    print_line(json.dumps(value, ensure_ascii=ascii_only))
