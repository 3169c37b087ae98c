"""Language models on the command line: the options, what they cost on screen, and `policy expand`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from topicality.config import PRESETS, Policy
from topicality.doors import show
from topicality.doors.options import JsonOption
from topicality.errors import ConfigError, InputError

if TYPE_CHECKING:
    from topicality.layer.expanding import Expanded
    from topicality.llm import Asker

LlmOption = Annotated[
    str | None,
    typer.Option("--llm", help="A language model: openai:MODEL[@BASE_URL], or an address. Key: OPENAI_API_KEY."),
]
UrlOption = Annotated[
    str | None,
    typer.Option("--llm-url", help="An OpenAI-compatible server, such as http://localhost:8080/v1; its first model."),
]
PromptsOption = Annotated[
    Path | None, typer.Option("--prompts", help="Folder of judge.txt, labeller.txt … that replace the shipped prompts.")
]
JudgeOption = Annotated[
    str | None,
    typer.Option("--judge", help="When the language model is asked: borderline, always, never; default: the policy's."),
]
SelectOption = Annotated[
    float, typer.Option("--select", help="Seconds that a language model may take to pick the topics to reopen.")
]


def register(app: typer.Typer) -> None:
    """Put the commands on the app of the command line."""
    policies = typer.Typer(help="Work on a policy file.", no_args_is_help=True)
    policies.callback()(_policies)
    policies.command("expand")(expand)
    app.add_typer(policies, name="policy")


def asker(llm: str | None, url: str | None, prompts: Path | None = None) -> Asker | None:
    """The model that the options name; None when they name none."""
    if llm is None and url is None:
        if prompts is not None:
            raise ConfigError("prompts are for a language model: give --llm or --llm-url too")
        return None
    from topicality.llm import Asker, Budget, load_llm

    model = load_llm(llm, url)
    return None if model is None else Asker(model, Budget(calls_per_minute=None), prompts=prompts)


def judged_by(policy: Policy, judge: str | None) -> Policy:
    """The policy with another choice of when the judge is asked."""
    return policy if judge is None else policy.model_copy(update={"judge": _choice(judge)})


def cost(model: Asker | None) -> None:
    """What asking cost, on standard error; nothing when nothing was asked."""
    counts = model.counters.to_dict().values() if model is not None else []
    for count in counts:
        _line(
            f"language model: asked {sum(count['outcomes'].values())} times, {count['calls']} calls, "
            f"{count['input_tokens']} + {count['output_tokens']} tokens, {count['seconds']:.1f} s"
        )


def judge_figures(report: dict[str, Any], most: int = 20) -> None:
    """What a judge changed in `eval guard`: counts, cost, and the rows."""
    out = show.console()
    effect = report["judge"]
    out.print(
        Text(
            f"judge: asked about {effect['asked']} of {report['n']} rows, {effect['failed']} times in vain; changed "
            f"{effect['changed']}: {effect['better']} better, {effect['worse']} worse"
        )
    )
    out.print(
        Text(
            f"cost: {effect['calls']} calls, {effect['input_tokens']} + {effect['output_tokens']} tokens, "
            f"{effect['seconds']:.1f} s"
        )
    )
    for row in effect["rows"][:most]:
        style = {"better": "green", "worse": "red"}.get(row["effect"], "")
        told = f"  {row['effect']:6} {row['before']} → {row['after']} ({row['label']})  {show.plain(row['text'], 90)}"
        out.print(Text(told, style=style))
    if len(effect["rows"]) > most:
        out.print(Text(f"  … and {len(effect['rows']) - most} more (--json has them all)", style="dim"))


def expand(
    policy: Annotated[str, typer.Argument(help="Policy file.")],
    llm: LlmOption = None,
    llm_url: UrlOption = None,
    prompts: PromptsOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the policy; default: the file itself.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be added.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for each rule.")] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Ask a language model once for each rule what it includes and what only looks like it; add both for you to review.

    They are written as examples and counterexamples, under a comment that says where they come from.
    """
    from topicality.layer.expanding import expand as ask

    model = asker(llm, llm_url, prompts)
    if model is None:
        raise ConfigError("no language model to ask: give --llm or --llm-url")
    where, chosen = _target(policy, output), Policy.load(policy)
    if not chosen.sided():
        raise ConfigError(f"{policy}: the policy has no rules to expand")
    with show.progress("asking", len(chosen.sided()), quiet=as_json) as advance:
        found = ask(chosen, model, timeout=timeout, progress=advance)
    text = _written(policy, where, chosen, found)
    if not dry_run:
        _replace(where, text)
    if as_json:
        sys.stdout.write(json.dumps(_report(found, None if dry_run else str(where))) + "\n")
        return
    _shown(found)
    _line("nothing written (--dry-run)" if dry_run else f"written: {where}; read the suggestions before you use them")
    if chosen.fitted is not None:
        _line("the policy is calibrated for its rules as they were: calibrate it again")


def _policies() -> None:
    """Work on a policy file."""


def _choice(judge: str) -> str:
    if judge not in ("borderline", "always", "never"):
        raise ConfigError("unknown choice", key="--judge", got=judge, accepted="borderline, always, never")
    return judge


def _target(policy: str, output: Path | None) -> Path:
    if output is not None:
        return output
    if policy in PRESETS:
        raise ConfigError("a preset cannot be changed: say with --output where the expanded policy goes")
    if Path(policy).suffix.lower() in (".yaml", ".yml"):
        raise ConfigError("writing YAML would lose its comments: name another file with --output")
    return Path(policy)


def _written(source: str, where: Path, policy: Policy, found: list[Expanded]) -> str:
    from topicality.layer.expanding import expanded_toml, expanded_values

    from_toml = source not in PRESETS and Path(source).suffix.lower() == ".toml"
    if from_toml and where.suffix.lower() == ".toml":
        return expanded_toml(Path(source).read_bytes().decode("utf-8-sig"), found)
    return Policy(**expanded_values(policy.dump(), found)).dumps(where)


def _replace(path: Path, text: str) -> None:
    """Write beside the file and put it in its place, so that an interruption leaves the old one."""
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_bytes(text.encode("utf-8"))  # line ends stay what they are
        os.replace(beside, path)  # noqa: PTH105 - atomic on every platform, unlike a rename
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error})") from error


def _report(found: list[Expanded], written: str | None) -> dict[str, Any]:
    rules = [
        {
            "side": one.side,
            "rule": one.rule,
            "examples": list(one.found.includes) if one.found else [],
            "counterexamples": list(one.found.near_misses) if one.found else [],
            "error": one.why or None,
        }
        for one in found
    ]
    uses = [one.llm for one in found]
    return {
        "rules": rules,
        "llm_calls": sum(use.calls for use in uses),
        "input_tokens": sum(use.input_tokens for use in uses),
        "output_tokens": sum(use.output_tokens for use in uses),
        "seconds": round(sum(use.seconds for use in uses), 3),
        "written": written,
    }


def _shown(found: list[Expanded]) -> None:
    out = show.console()
    for one in found:
        out.print(Text(f"{one.side} ", style="dim"), Text(show.plain(one.rule), style="bold"), sep="")
        if one.found is None:
            out.print(Text(f"  nothing: {show.plain(one.why)}", style="yellow"))
            continue
        for mark, style, entries in (("+", "green", one.found.includes), ("-", "red", one.found.near_misses)):
            for entry in entries:
                out.print(Text(f"  {mark} {show.plain(entry)}", style=style))
    uses = [one.llm for one in found]
    out.print(Text(f"{sum(use.calls for use in uses)} calls, {sum(use.seconds for use in uses):.1f} s", style="dim"))


def _line(text: str) -> None:
    show.console(error=True).print(Text(text, style="dim"))
