"""The commands about topics: `segment`, `watch` and `eval segment`. Registered on the command line's own app."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from topicality.doors import show
from topicality.doors.options import EncoderOption, JsonOption, print_line
from topicality.doors.show_topics import bands, segment_figures, watched
from topicality.errors import ConfigError, InputError
from topicality.types import Message

GranularityOption = Annotated[
    str, typer.Option("--granularity", "-g", help="coarse, balanced or fine: how much has to change for a new segment.")
]
RateOption = Annotated[
    float | None,
    typer.Option("--expected-rate", help="Share of messages that start a segment, such as 0.2; by default it follows."),
]
TalkOption = Annotated[
    str, typer.Option("--talk", help="Who talks: pair, crowd (threads interleave) or meeting; auto finds out.")
]


def register(app: typer.Typer, measure: typer.Typer) -> None:
    """Put the commands on the apps of the command line."""
    app.command("segment")(segment)
    app.command("watch")(watch)
    measure.command("segment")(eval_segment)


def segment(
    file: Annotated[str, typer.Argument(help="A transcript in any format that is known, or - for standard input.")],
    granularity: GranularityOption = "balanced",
    expected_rate: RateOption = None,
    talk: TalkOption = "auto",
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Pass over malformed records and tell about them.")
    ] = False,
    encoder: EncoderOption = "minilm",
    as_json: JsonOption = False,
) -> None:
    """Cut a transcript into topics: where each starts, ends and comes back."""
    from topicality.doors.transcripts import read
    from topicality.layer.segmentation import TopicSegmenter, labels_of

    cutter = TopicSegmenter(encoder, granularity=granularity, expected_rate=expected_rate, talk=_talk(talk))
    source: Any = sys.stdin.buffer if file == "-" else file
    for conversation in read(source, keep_going=keep_going):
        messages = conversation.messages
        for problem in conversation.problems:
            sys.stderr.write(f"passed over: {show.plain(str(problem), 300)}\n")
        with show.progress(conversation.title or conversation.id, len(messages), quiet=as_json) as advance:
            found = cutter.segment([_without_id(message) for message in messages], progress=advance)
        labels = labels_of(found, messages)
        if as_json:
            values = {
                "conversation": conversation.id, "title": conversation.title, "messages": len(messages),
                "labels": {str(topic): list(words) for topic, words in labels.items()}, **found.to_dict(),
            }  # fmt: skip
            for decision, message in zip(values["decisions"], messages, strict=True):
                decision["id"] = message.id
                del decision["previous"]
            print_line(json.dumps(values, ensure_ascii=False))
        else:
            bands(conversation.title or conversation.id, messages, found, labels)


def watch(
    policy: Annotated[
        str | None, typer.Option("--policy", "-p", help="Policy file or preset; without one, only topics are watched.")
    ] = None,
    granularity: GranularityOption = "balanced",
    expected_rate: RateOption = None,
    encoder: EncoderOption = "minilm",
    as_json: JsonOption = False,
) -> None:
    """Watch a conversation from standard input, a message a line: verdict, drift and topic of each.

    A line is a text (of the user), or JSON with "text" or "content" and maybe "role", "name" and "id".
    """
    from topicality.layer.watching import Watcher

    watcher = Watcher(policy, encoder, granularity=granularity, expected_rate=expected_rate)
    if sys.stdin.isatty():
        sys.stderr.write("one message a line; end with Ctrl-D\n")
    for message in _messages():
        turn = watcher.receive(message)
        if as_json:
            print_line(json.dumps(turn.to_dict(), ensure_ascii=False))
        else:
            watched(turn)
    final = watcher.finish()
    if final and as_json:
        print_line(json.dumps({"confirmed": [asdict(decision) for decision in final]}, ensure_ascii=False))


def eval_segment(
    data: Annotated[list[Path], typer.Option("--data", "-d", help="Labelled dialogues, JSONL; may be repeated.")],
    mode: Annotated[
        str, typer.Option("--mode", help="online (at once), confirmed (one message later) or offline.")
    ] = "online",
    granularity: GranularityOption = "balanced",
    expected_rate: RateOption = None,
    encoder: EncoderOption = "minilm",
    as_json: JsonOption = False,
) -> None:
    """Measure segmentation: Pk, WindowDiff, F1, topics, returns, links, time a message."""
    from topicality.core.segment.entry import check_settings
    from topicality.embed import load
    from topicality.embed.segment import load_heads
    from topicality.layer.evaluate_segment import MODES, evaluate_dialogues, mean_of_segmentations, read_dialogues

    check_settings(granularity, expected_rate, 2, "auto")
    if mode not in MODES:
        raise ConfigError("unknown mode", key="--mode", got=mode, accepted=", ".join(MODES))
    embedder = load(encoder)
    reports: dict[str, Any] = {}
    for path in data:
        dialogues = read_dialogues(path)
        with show.progress(path.name, len(dialogues), quiet=as_json) as advance:
            reports[str(path)] = evaluate_dialogues(
                dialogues,
                embedder.embed,
                load_heads(embedder),
                mode=mode,
                space=embedder.space,
                granularity=granularity,
                expected_rate=expected_rate,
                progress=advance,
            )
    found = list(reports.values())
    mean = mean_of_segmentations(found)
    result = (
        found[0]
        if len(found) == 1
        else {"dialogues": sum(r["dialogues"] for r in found), "mode": mode, "mean": mean, "files": reports}
    )
    if as_json:
        print_line(json.dumps(result, ensure_ascii=False))
    else:
        segment_figures(reports, mean)


def _messages() -> Iterator[Message]:
    for number, raw in enumerate(sys.stdin.buffer, start=1):
        line = raw.decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r\n")
        if not line.lstrip().startswith("{"):
            if line.strip():
                yield Message("user", line)
            continue
        where = f"standard input, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not valid JSON ({error})") from error
        text = value.get("text", value.get("content"))
        if not isinstance(text, str):
            raise InputError(f'{where}: a JSON line needs a "text" or "content" that is a string')
        given = {name: value.get(name) for name in ("role", "name", "id")}
        for name, each in given.items():
            if each is not None and not isinstance(each, str):
                raise InputError(f'{where}: "{name}" must be a string')
        yield Message(given["role"] or "user", text, id=given["id"], name=given["name"])


def _without_id(message: Message) -> Message:
    """The order of a transcript is that of the file; its ids need not ascend."""
    from dataclasses import replace

    return replace(message, id=None) if message.id is not None else message


def _talk(name: str) -> Any:
    from topicality.core.segment.decisions import Talk

    if name not in get_args(Talk):
        raise ConfigError("unknown kind of talk", key="--talk", got=name, accepted=", ".join(get_args(Talk)))
    return name
