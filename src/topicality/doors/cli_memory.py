"""The commands about memory: `import`, `topics`, `recall`, `context`, `export`, `erase`. Registered on the app."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topicality.doors import show, show_memory
from topicality.doors.cli_llm import LlmOption, PromptsOption, SelectOption, UrlOption, asker, cost
from topicality.doors.options import EncoderOption, JsonOption, print_line
from topicality.errors import ConfigError, InputError

if TYPE_CHECKING:
    from topicality.doors.transcripts import Conversation as Transcript
    from topicality.layer.memory import Layer
    from topicality.llm import Asker

StoreOption = Annotated[
    str, typer.Option("--store", "-s", help="chat.db, sqlite:///chat.db, or postgresql://user:password@host/database.")
]
OwnerOption = Annotated[str, typer.Option("--owner", help="Whose conversations.")]
SomeConversation = Annotated[
    str | None, typer.Option("--conversation", "-c", help="One conversation; all of the owner's without it.")
]


def register(app: typer.Typer) -> None:
    """Put the commands on the app of the command line."""
    app.command("import")(import_files)
    app.command("topics")(topics)
    app.command("recall")(recall)
    app.command("context")(context)
    app.command("export")(export)
    app.command("erase")(erase)


def import_files(
    files: Annotated[list[str], typer.Argument(help="Transcripts in any format that is known; - is standard input.")],
    store: StoreOption,
    owner: OwnerOption = "default",
    conversation: Annotated[
        str | None, typer.Option("--conversation", "-c", help="Keep it under this id; for a file of one conversation.")
    ] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Pass over malformed records and tell about them.")
    ] = False,
    encoder: EncoderOption = "minilm",
    as_json: JsonOption = False,
) -> None:
    """Put transcripts into a store: exchanges, topics, and what it takes to recall them. Safe to repeat."""
    from topicality.layer.importing import Taken, conversation_key, import_messages

    if conversation is not None and len(files) > 1:
        raise ConfigError(
            "one conversation cannot be several files", key="--conversation", got=len(files), accepted="1"
        )
    done: list[dict[str, Any]] = []
    total = Taken()
    with _opened(store, encoder, new=True) as layer:
        for file in files:
            for number, talk in enumerate(_read(file, keep_going, only=conversation is not None), 1):
                source = "stdin" if file == "-" else Path(file).stem
                key = conversation or conversation_key(talk.id, number, source)
                with show.progress(talk.title or key, len(talk.messages), quiet=as_json) as advance:
                    taken = import_messages(layer, key, talk.messages, owner, progress=advance)
                counts = {name: getattr(taken, name) for name in Taken.__slots__}
                done.append({"conversation": key, "title": talk.title, "file": file, **counts})
                total += taken
    result = {name: getattr(total, name) for name in Taken.__slots__}
    if as_json:
        print_line(json.dumps({"conversations": done, **result}))
    else:
        show_memory.imported(len({entry["conversation"] for entry in done}), result)


def topics(
    store: StoreOption,
    owner: OwnerOption = "default",
    conversation: SomeConversation = None,
    relabel: Annotated[
        bool,
        typer.Option("--relabel", help="Have a language model (--llm) name closed topics again and mend their spans."),
    ] = False,
    llm: LlmOption = None,
    llm_url: UrlOption = None,
    prompts: PromptsOption = None,
    encoder: EncoderOption = "minilm",
    as_json: JsonOption = False,
) -> None:
    """What each conversation has been about: labels, terms, spans, when, status."""
    model = asker(llm, llm_url, prompts)
    if relabel and model is None:
        raise ConfigError("--relabel needs a language model: give --llm openai:MODEL or --llm-url URL")
    with _opened(store, encoder) as layer:
        names = [record.id for record in layer.conversations(owner)]
        if conversation is not None:
            _known(layer, owner, conversation)
            names = [conversation]
        for name in names:
            if relabel and model is not None:
                _relabelled(layer, owner, name, model)
            found = layer.conversation(name, owner).topics()
            if as_json:
                print_line(
                    json.dumps({"conversation": name, "topics": [show_memory.topic_values(one) for one in found]})
                )
            else:
                show_memory.topics(name, found, layer.clock())
        if not names and not as_json:
            _note(f"owner {owner!r} has no conversations in this store")


def _relabelled(layer: Layer, owner: str, name: str, model: Asker) -> None:
    from topicality.layer.labelling import relabel_all

    with show.busy(f"asking about {name}"):
        results = relabel_all(layer.store, owner, name, model, reading=layer.reading)
    accepted = sum(result.reason == "accepted" for result in results)
    calls = sum(result.llm_calls for result in results)
    last = "" if all(result.reason == "accepted" for result in results) else f", then {results[-1].reason}"
    _note(f"{name}: {accepted} batches relabelled{last} ({calls} calls)")


def recall(
    question: Annotated[str, typer.Argument(help="Anything that was talked about.")],
    store: StoreOption,
    budget: Annotated[int, typer.Option("--budget", help="Most tokens of the answer.")] = 1000,
    owner: OwnerOption = "default",
    conversation: SomeConversation = None,
    llm: LlmOption = None,
    llm_url: UrlOption = None,
    select: SelectOption = 10.0,
    prompts: PromptsOption = None,
    encoder: EncoderOption = "minilm",
    as_json: JsonOption = False,
) -> None:
    """The passages that matter for a question, within a token budget; with --llm, those of topics that it picks first."""
    _positive(budget)
    model = asker(llm, llm_url, prompts)
    if model is not None and conversation is None:
        raise ConfigError("a language model picks topics of one conversation: name it with --conversation")
    with _opened(store, encoder, model, select) as layer:
        if conversation is not None:
            _known(layer, owner, conversation)
            found = layer.conversation(conversation, owner).recall(question, budget)
        else:
            found = layer.recall(question, budget, owner=owner)
    if as_json:
        print_line(json.dumps(show_memory.recall_values(found)))
    else:
        show_memory.recalled(found)
        cost(model)


def context(
    question: Annotated[str, typer.Argument(help="The message to be answered.")],
    store: StoreOption,
    conversation: Annotated[str, typer.Option("--conversation", "-c", help="The conversation it belongs to.")],
    budget: Annotated[int, typer.Option("--budget", help="Most tokens of all messages together.")] = 4000,
    system: Annotated[str, typer.Option("--system", help="The system text.")] = "",
    owner: OwnerOption = "default",
    llm: LlmOption = None,
    llm_url: UrlOption = None,
    select: SelectOption = 10.0,
    prompts: PromptsOption = None,
    encoder: EncoderOption = "minilm",
    as_json: JsonOption = False,
) -> None:
    """The messages to send to a model with a question. Nothing is written. With --llm, topics that it picks come first."""
    _positive(budget)
    model = asker(llm, llm_url, prompts)
    with _opened(store, encoder, model, select) as layer:
        _known(layer, owner, conversation)
        found = layer.conversation(conversation, owner).context(budget, system, question=question)
    if as_json:
        print_line(json.dumps(show_memory.context_values(found)))
    else:
        show_memory.context(found)
        cost(model)


def export(
    store: StoreOption,
    owner: Annotated[str | None, typer.Option("--owner", help="Whose conversations; everybody's without it.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; standard output without it.")
    ] = None,
) -> None:
    """Everything that is kept, as JSON lines; `Layer.load` reads it back."""
    with _stored(store) as kept:
        if output is None:
            for line in kept.export(owner):
                sys.stdout.write(line + "\n")
            return
        beside = output.with_name(output.name + ".new")
        try:
            with beside.open("w", encoding="utf-8", newline="\n") as stream:
                stream.writelines(f"{line}\n" for line in kept.export(owner))
            os.replace(beside, output)  # noqa: PTH105 - atomic on every platform, unlike a rename
        except OSError as error:
            raise InputError(f"{output}: cannot be written ({error.strerror or error})") from error
        finally:
            beside.unlink(missing_ok=True)
    _note(f"written: {output}")


def erase(
    store: StoreOption,
    owner: Annotated[str, typer.Option("--owner", help="Whose conversations.")],
    conversation: SomeConversation = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove an owner, or one conversation, with everything derived from it. For good."""
    with _stored(store) as kept:
        what = f"conversation {conversation!r} of {owner!r}" if conversation else f"everything of {owner!r}"
        if not yes:
            if not sys.stdin or not sys.stdin.isatty():
                raise ConfigError(f"erasing {what} cannot be undone: say --yes")
            typer.confirm(f"Erase {show.plain(what)}? It cannot be undone", abort=True, err=True)
        gone = kept.erase(owner, conversation)
    _note(f"erased: {gone} exchange{'' if gone == 1 else 's'}")


@contextmanager
def _opened(
    url: str, encoder: str, model: Asker | None = None, select: float = 0.0, *, new: bool = False
) -> Iterator[Layer]:
    from topicality.layer.memory import open_layer
    from topicality.llm import Roles

    if not new:
        _must_exist(url)
    roles = Roles(judge=0.0, labels=None, select=select)
    with open_layer(url, embedder=encoder, llm=model, roles=roles) as layer:
        yield layer


@contextmanager
def _stored(url: str) -> Iterator[Any]:
    from topicality.store import open_store

    _must_exist(url)
    kept = open_store(url)
    try:
        yield kept
    finally:
        kept.close()


def _must_exist(url: str) -> None:
    """Looking for something in a store does not make one."""
    kind, separator, rest = url.partition("://")
    path = rest.removeprefix("/") if separator and kind == "sqlite" else url if not separator else None
    if path and not Path(path).exists():
        raise InputError(f"there is no store at {path}; `topicality import` makes one")


def _known(layer: Layer, owner: str, conversation: str) -> None:
    if all(record.id != conversation for record in layer.conversations(owner)):
        raise InputError(f"owner {owner!r} has no conversation {show.plain(conversation, 60)!r} in this store")


def _read(file: str, keep_going: bool, *, only: bool) -> Iterator[Transcript]:
    from topicality.doors.transcripts import read

    source: Any = sys.stdin.buffer if file == "-" else file
    found = 0
    held: list[Transcript] = []
    for talk in read(source, keep_going=keep_going):
        for problem in talk.problems:
            sys.stderr.write(f"passed over: {show.plain(str(problem), 300)}\n")
        if not talk.messages:
            continue
        found += 1
        if only and found > 1:
            raise ConfigError("the file has several conversations", key="--conversation", got=file, accepted="one each")
        if only:
            held.append(talk)  # nothing is written before it is known that there is no other
        else:
            yield talk
    yield from held


def _positive(budget: int) -> None:
    if budget < 1:
        raise ConfigError("cannot be used", key="--budget", got=budget, accepted="a whole number of tokens from 1")


def _note(text: str) -> None:
    sys.stderr.write(show.plain(text, 400) + "\n")
