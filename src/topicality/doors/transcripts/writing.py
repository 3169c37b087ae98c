"""Conversations out again, as JSON Lines that this package and OpenAI-compatible tools read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TextIO

from topicality.doors.transcripts.record import Conversation
from topicality.types import Message


def write_jsonl(conversations: Iterable[Conversation], stream: TextIO) -> int:
    """Write one line a conversation: {"id", "title", "messages": [{"role", "content", …}]}.

    Args:
        conversations: what to write; those without messages are passed over.
        stream: where to; characters beyond ASCII are escaped, so that any encoding holds them.
    Returns:
        The number of lines. `read` gives the same messages back: role, text, time (`created_at`, seconds since the
        epoch), id, name, ids of calls. The name and arguments of a call are not kept apart from its text.
    """
    count = 0
    for conversation in conversations:
        if not conversation.messages:
            continue
        line: dict[str, Any] = {"id": conversation.id}
        if conversation.title is not None:
            line["title"] = conversation.title
        line["messages"] = [_message(message) for message in conversation.messages]
        stream.write(json.dumps(line) + "\n")
        count += 1
    return count


def _message(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.name is not None:
        row["name"] = message.name
    if message.call is not None:
        row["tool_call_id"] = message.call
    if message.calls:
        call = {"name": "tool", "arguments": "{}"}
        row["tool_calls"] = [{"id": each, "type": "function", "function": call} for each in message.calls]
    if message.id is not None:
        row["id"] = message.id
    if message.at is not None:
        row["created_at"] = message.at
    return row
