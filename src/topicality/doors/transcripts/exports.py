"""Data exports of chat products: ChatGPT, Claude, Discord, Telegram. Slack has a room of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from topicality.doors.transcripts.content import placeholder, say, text_of
from topicality.doors.transcripts.cursor import Cursor, rows
from topicality.doors.transcripts.record import (
    Call,
    Conversation,
    Malformed,
    Report,
    Thread,
    first,
    known_role,
    label,
    mapping,
    place,
    sequence,
    speaker,
    when,
)
from topicality.doors.transcripts.source import Source

_MEDIA = ("photo", "file", "poll", "contact_information", "location_information")
_CITATION = re.compile("\ue200[^\ue200\ue201]*\ue201")
_UNSEEN = frozenset(
    {"thoughts", "reasoning_recap", "user_editable_context", "model_editable_context", "app_pairing_content"}
)


def read_chatgpt(source: Source, report: Report) -> Iterator[Conversation]:
    """ChatGPT: each conversation is a tree; what is on screen is the path from the root to `current_node`."""
    yield from _each(source, report, "chatgpt", _chatgpt)


def read_claude(source: Source, report: Report) -> Iterator[Conversation]:
    """Claude: messages with content blocks; where messages were edited, the branch that ends in the latest one."""
    yield from _each(source, report, "claude", _claude)


def _each(
    source: Source, report: Report, name: str, add: Callable[[Thread, dict[str, Any], str, Report], None]
) -> Iterator[Conversation]:
    for position, row in rows(source, report):
        if not isinstance(row, dict):
            report(position, "expected an object")
            continue
        thread = Thread(name, label(first(row, "conversation_id", "uuid", "id")), label(first(row, "title", "name")))
        try:
            add(thread, row, position, report)
        except Malformed as problem:
            report(position, str(problem))
        yield thread.done()


def _chatgpt(thread: Thread, row: dict[str, Any], position: str, report: Report) -> None:
    nodes = row.get("mapping")
    if not isinstance(nodes, dict):
        raise Malformed("the mapping is missing")
    path: list[str] = []
    seen: set[str] = set()
    key = row.get("current_node")
    if not isinstance(key, str) or key not in nodes:
        key = _last_leaf(nodes)
    while isinstance(key, str):
        if key in seen:
            report(place(position, "mapping"), "the parents go round in a circle")
            break
        seen.add(key)
        node = nodes.get(key)
        if not isinstance(node, dict):
            report(place(position, f"mapping[{label(key)}]"), "a parent that is not there")
            break
        path.append(key)
        key = node.get("parent")
    last_call: str | None = None
    for key in reversed(path):
        where = place(position, f"mapping[{label(key)}]")
        message = nodes[key].get("message")
        if message is None:
            continue
        try:
            last_call = _chatgpt_message(thread, message, last_call, where, report)
        except Malformed as problem:
            report(where, str(problem))


def _last_leaf(nodes: dict[str, Any]) -> str | None:
    """The last node nothing hangs on, for an export without `current_node`."""
    leaves = [key for key, node in nodes.items() if isinstance(node, dict) and not sequence(node.get("children"))]
    return leaves[-1] if leaves else None


def _chatgpt_message(thread: Thread, message: Any, last_call: str | None, where: str, report: Report) -> str | None:
    """Add one message; the id of the call that a tool's message would now answer."""
    if not isinstance(message, dict):
        raise Malformed("the message is not an object")
    author, content = mapping(message.get("author")), mapping(message.get("content"))
    given = author.get("role")
    role = known_role(given) if isinstance(given, str) else None
    if role is None:
        raise Malformed("the author's role is missing or unknown")
    kind = label(content.get("content_type"))
    hidden = mapping(message.get("metadata")).get("is_visually_hidden_from_conversation") is True
    if hidden or message.get("weight") == 0 or kind in _UNSEEN:
        return last_call
    parts = [
        {**part, "type": _asset(part.get("content_type"))} if isinstance(part, dict) else part
        for part in sequence(content.get("parts"))
    ]
    text = text_of(parts) if parts else text_of(first(content, "text", "result", "content"))
    text = _CITATION.sub("", text)
    key = label(message.get("id"))
    at = when(report, where, message.get("create_time"))
    recipient = label(message.get("recipient"))
    if role == "assistant" and recipient not in (None, "all"):
        thread.add(role, text, at=at, key=key, calls=[Call(key or f"call-to-{recipient}", f"{recipient}()")])
        return key or f"call-to-{recipient}"
    thread.add(role, text, at=at, key=key, name=label(author.get("name")), call=last_call if role == "tool" else None)
    return last_call


def _asset(kind: Any) -> str:
    if kind == "audio_transcription":
        return "text"
    return (label(kind) or "attachment").removesuffix("_pointer").removesuffix("_asset")


def _claude(thread: Thread, row: dict[str, Any], position: str, report: Report) -> None:
    messages = row.get("chat_messages")
    if not isinstance(messages, list):
        raise Malformed("chat_messages is missing")
    kept = _branch(messages, row.get("current_leaf_message_uuid"))
    for index, message in enumerate(messages):
        where = place(position, f"chat_messages[{index}]")
        if not isinstance(message, dict):
            report(where, "expected an object")
            continue
        if kept is not None and label(message.get("uuid")) not in kept:
            continue
        try:
            role, name = speaker(message.get("sender"))
            content = list(sequence(message.get("content"))) or [message.get("text")]
            content.extend(_attachment(mapping(each)) for each in sequence(message.get("attachments")))
            content.extend({"type": "file", **mapping(each)} for each in sequence(message.get("files")))
            at = when(report, where, message.get("created_at"))
            say(thread, role, content, at=at, key=label(message.get("uuid")), name=name)
        except Malformed as problem:
            report(where, str(problem))


def _attachment(each: dict[str, Any]) -> Any:
    """A pasted or attached text belongs to what was said; any other attachment is only named."""
    extracted = each.get("extracted_content")
    named = placeholder({"type": "attachment", "file_name": each.get("file_name")})
    if isinstance(extracted, str) and extracted.strip():
        return f"{named}\n{extracted}"
    return {"type": "attachment", "file_name": each.get("file_name")}


def _branch(messages: list[Any], leaf: Any) -> set[Any] | None:
    """Ids on the way from the latest message (or the leaf named) to the root; None when there is but one way."""
    parents: dict[str, Any] = {}
    for message in messages:
        uuid = label(mapping(message).get("uuid"))
        if uuid is not None:
            parents[uuid] = label(mapping(message).get("parent_message_uuid"))
    known = [parent for parent in parents.values() if isinstance(parent, str)]
    if len(known) == len(set(known)) or not parents:
        return None
    key: Any = leaf if isinstance(leaf, str) and leaf in parents else next(reversed(parents))
    kept: set[Any] = set()
    while isinstance(key, str) and key in parents and key not in kept:
        kept.add(key)
        key = parents[key]
    return kept


def read_discord(source: Source, report: Report) -> Iterator[Conversation]:
    """A channel as DiscordChatExporter writes it. Messages are streamed; posts of bots are the assistant's."""
    yield from _chat_file(source, report, "discord", _discord)


def read_telegram(source: Source, report: Report) -> Iterator[Conversation]:
    """One chat, or all chats of a full export. Service messages have no words and are left out."""
    yield from _chat_file(source, report, "telegram", _telegram)


AddMessage = Callable[[Thread, dict[str, Any], str, Report], None]


def _chat_file(source: Source, report: Report, name: str, add: AddMessage) -> Iterator[Conversation]:
    with source.text(report) as text:
        cursor = Cursor(text)
        if cursor.peek() != "{":
            report("", "expected an object")
            return
        for thread in _chats(cursor, report, name, add, ""):
            yield thread.done()
        if cursor.peek():
            report("the end of the document", "more text after it")


def _chats(cursor: Cursor, report: Report, name: str, add: AddMessage, where: str) -> Iterator[Thread]:
    thread = Thread(name)
    facts: dict[str, Any] = {}
    for key in cursor.keys(report, where):
        inside = place(where, label(key) or "")
        ahead = cursor.peek()
        if key == "messages" and ahead == "[":
            for position, row in cursor.elements(report, inside):
                if not isinstance(row, dict):
                    report(position, "expected an object")
                    continue
                try:
                    add(thread, row, position, report)
                except Malformed as problem:
                    report(position, str(problem))
        elif key in ("chats", "left_chats") and ahead == "{" and not where:
            yield from _lists(cursor, report, name, add, inside)
        else:
            try:
                facts[key] = cursor.value()
            except Malformed as problem:
                report(inside, str(problem))
                cursor.skip()
    channel = mapping(facts.get("channel"))
    thread.id = label(first(channel, "id")) or label(facts.get("id"))
    thread.title = label(first(channel, "name")) or label(facts.get("name"))
    yield thread


def _lists(cursor: Cursor, report: Report, name: str, add: AddMessage, where: str) -> Iterator[Thread]:
    for key in cursor.keys(report, where):
        inside = place(where, label(key) or "")
        if key == "list" and cursor.peek() == "[":
            for position in cursor.places(report, inside):
                if cursor.peek() == "{":
                    yield from _chats(cursor, report, name, add, position)
                else:
                    report(position, "expected an object")
                    cursor.skip()
        else:
            try:
                cursor.value()
            except Malformed as problem:
                report(inside, str(problem))
                cursor.skip()


def _discord(thread: Thread, row: dict[str, Any], position: str, report: Report) -> None:
    author = mapping(row.get("author"))
    name = label(first(author, "nickname", "name"))
    if name is None:
        raise Malformed("the author is missing")
    content = row.get("content")
    if not isinstance(content, str):
        raise Malformed("the content is missing")
    attached = map(mapping, sequence(row.get("attachments")))
    stuck = map(mapping, sequence(row.get("stickers")))
    others = [placeholder({"type": "attachment", "name": each.get("fileName")}) for each in attached]
    others += [placeholder({"type": "sticker", "name": each.get("name")}) for each in stuck]
    embeds = [embed.get(key) for embed in map(mapping, sequence(row.get("embeds"))) for key in ("title", "description")]
    embedded = [words for words in embeds if isinstance(words, str) and words]
    said = row.get("type") in ("Default", "Reply", "ChatInputCommand", "ContextMenuCommand", "ApplicationCommand", None)
    role = "system" if not said else "assistant" if author.get("isBot") is True else "user"
    at = when(report, position, row.get("timestamp"))
    text = content if content.strip() else "\n".join(embedded or others)
    thread.add(role, text, at=at, key=label(row.get("id")), name=name)


def _telegram(thread: Thread, row: dict[str, Any], position: str, report: Report) -> None:
    if row.get("type") == "service":
        return
    if row.get("type") != "message":
        raise Malformed('the type is neither "message" nor "service"')
    name = label(first(row, "from", "from_id"))
    if name is None:
        raise Malformed("the sender is missing")
    content = row.get("text")
    if not isinstance(content, str | list):
        raise Malformed("the text is missing")
    pieces: list[str] = []
    for index, piece in enumerate(content if isinstance(content, list) else [content]):
        words = piece.get("text") if isinstance(piece, dict) else piece
        if not isinstance(words, str):
            raise Malformed(f"text[{index}] is neither text nor an entity with text")
        pieces.append(words)
    text = "".join(pieces)
    if not text.strip():
        kind = label(row.get("media_type")) or next((key for key in _MEDIA if key in row), None)
        named = first(row, "sticker_emoji", "file_name")
        text = placeholder({"type": kind, "name": named}) if kind else ""
    at = when(report, position, first(row, "date_unixtime", "date"))
    thread.add("user", text, at=at, key=label(row.get("id")), name=name)
