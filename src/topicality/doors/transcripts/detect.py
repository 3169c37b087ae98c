"""Which format a text is in, by what is in it."""

from __future__ import annotations

import re
from collections.abc import Callable

from topicality.doors.transcripts.cursor import looks_like_lines
from topicality.doors.transcripts.plain import is_plain, is_webvtt
from topicality.doors.transcripts.source import HEAD, decode_head
from topicality.doors.transcripts.table import header_of
from topicality.doors.transcripts.whatsapp import is_whatsapp
from topicality.errors import InputError

FORMATS: dict[str, str] = {
    "slack": "Slack export (zip, or one day's JSON)",
    "chatgpt": "ChatGPT data export (zip, conversations.json or its shards)",
    "claude": "Claude data export (zip or conversations.json)",
    "claude-code": "Claude Code session (JSON Lines)",
    "telegram": "Telegram export (result.json)",
    "discord": "Discord, as DiscordChatExporter writes JSON",
    "pydantic-ai": "pydantic-ai messages",
    "langchain": "LangChain messages (messages_to_dict or dumpd)",
    "responses": "OpenAI Responses items",
    "sharegpt": "ShareGPT conversations",
    "anthropic": "Anthropic messages",
    "openai": "OpenAI chat messages (JSON or JSON Lines)",
    "openai-stream": "OpenAI event stream (SSE)",
    "anthropic-stream": "Anthropic event stream (SSE)",
    "whatsapp": "WhatsApp chat export (text)",
    "webvtt": "WebVTT captions",
    "csv": "CSV with a header row naming a text column and a role or speaker column",
    "plain": 'plain text, "role: what was said"',
}
"""The formats that are read, most specific first: name and description."""

_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*+)(?:"(\s*:)?|\\?\Z)|[{}\[\],]', re.DOTALL)
_DEPTH = 7
_VALUES = 40
_LINES = 200
_SHOWN_KEY = re.compile(r"[A-Za-z_][\w.-]{0,30}", re.ASCII)
_ZIP = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_PACKED = ((b"\x1f\x8b", "gzip"), (b"%PDF", "PDF"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz"))
_REPLY = r'"type"\s*:\s*"'


class _Paths(dict[str, set[str]]):
    """The keys of JSON records by path, with the first strings at each; `a.b` is b in a, or in an element of a."""

    def any(self, *paths: str) -> bool:
        return not self.keys().isdisjoint(paths)

    def all(self, *paths: str) -> bool:
        return self.keys() >= set(paths)

    def says(self, paths: str, values: str) -> bool:
        return any(not self.get(path, set()).isdisjoint(values.split()) for path in paths.split())


_RULES: tuple[tuple[str, Callable[[_Paths], bool]], ...] = (
    ("chatgpt", lambda at: at.any("mapping")),
    ("claude", lambda at: at.any("chat_messages")),
    ("discord", lambda at: at.all("guild", "channel")),
    ("telegram", lambda at: at.any("messages.from_id", "messages.date_unixtime", "messages.actor_id")),
    ("telegram", lambda at: at.any("chats.list", "left_chats.list")),
    ("claude-code", lambda at: at.any("parentUuid", "leafUuid") or at.all("sessionId", "message")),
    ("pydantic-ai", lambda at: at.any("parts.part_kind", "messages.parts.part_kind")),
    ("langchain", lambda at: at.any("data.content", "messages.data.content")),
    ("langchain", lambda at: at.any("kwargs.content", "messages.kwargs.content")),
    ("slack", lambda at: at.any("ts") and at.says("type", "message")),
    ("responses", lambda at: at.says("type output.type input.type", "function_call function_call_output reasoning")),
    ("responses", lambda at: at.says("content.type output.content.type input.content.type", "input_text output_text")),
    ("responses", lambda at: at.says("object", "response") or at.any("input.role")),
    ("sharegpt", lambda at: at.any("conversations.from", "conversations.role", "conversation.from")),
    ("sharegpt", lambda at: at.all("from", "value")),
    ("anthropic", lambda at: at.says("content.type messages.content.type", "tool_use tool_result thinking")),
    ("anthropic", lambda at: at.all("system", "messages")),
    ("openai", lambda at: at.any("messages", "conversation.role")),
    (
        "openai",
        lambda at: (
            at.any("role", "speaker", "sender", "author")
            and at.any("content", "text", "message", "tool_calls", "parts")
        ),
    ),
)


def detect(head: bytes | str, name: str = "") -> str:
    """Name the format of a transcript from its start.

    Args:
        head: the first bytes, or the first characters; 256 KiB are looked at, one record is usually enough.
        name: what to call it in the error. It never decides: a ".csv" with JSON in it is JSON.
    Returns:
        A key of `FORMATS`; "zip" for an archive, whose members decide; "empty" for white space or an empty array.
    Raises:
        InputError: it is none of them; says what was seen and what is accepted.
    """
    if isinstance(head, bytes):
        if head.startswith(_ZIP):
            return "zip"
        for magic, kind in _PACKED:
            if head.startswith(magic):
                raise _unknown(name, f"{kind} data; unpack it or export as text first")
        text = decode_head(head[:HEAD])
    else:
        text = head[:HEAD].lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    start = text.lstrip()
    if not start or re.fullmatch(r"\[\s*\]\s*", start[:200]):
        return "empty"
    found = _marked(start)
    if found is None and (start[0] in "{[" or looks_like_lines(start)):
        paths = _shape(start)
        found = next((each for each, holds in _RULES if holds(paths)), None)
        if found is None and paths:
            keys = [key for key in dict.fromkeys(path.split(".")[0] for path in paths) if _SHOWN_KEY.fullmatch(key)]
            raise _unknown(name, f"JSON with the keys {', '.join(keys[:8]) or '(none)'}")
    if found is None and header_of(start) is not None:
        found = "csv"
    if found is None and is_plain(start):
        found = "plain"
    if found is None:
        raise _unknown(name, "binary data" if "\x00" in start[:1000] else "text that is none of these")
    return found


def _unknown(name: str, seen: str) -> InputError:
    accepted = "; ".join(FORMATS.values())
    return InputError(f"{name or 'the transcript'} is of no known format: got {seen}; accepted: {accepted}")


def _marked(start: str) -> str | None:
    """Formats that show in their first characters."""
    if is_webvtt(start):
        return "webvtt"
    if is_whatsapp(start):
        return "whatsapp"
    if start.startswith(("data:", "event:")):
        if re.search(_REPLY + "(?:message_start|content_block_)", start):
            return "anthropic-stream"
        if re.search(r'"choices"\s*:', start) or re.search(_REPLY + r"response\.", start):
            return "openai-stream"
    return None


def _shape(text: str) -> _Paths:
    """The paths of a JSON text. The text may be cut off, or broken in places."""
    paths = _Paths()
    if looks_like_lines(text):
        for line in text.split("\n", _LINES)[:_LINES]:
            _walk(line, paths)
    else:
        _walk(text, paths)
    return paths


def _walk(text: str, paths: _Paths) -> None:
    stack: list[str] = []  # what each open bracket adds to the path: the key before it, or "" for an array's element
    key = ""
    for match in _TOKEN.finditer(text):
        word, mark = match.group(1), match.group()
        if match.group(2):
            key = word
            if len(stack) <= _DEPTH:
                paths.setdefault(".".join([*filter(None, stack), key]), set())
        elif word is not None:
            if key and len(stack) <= _DEPTH:
                found = paths[".".join([*filter(None, stack), key])]
                if len(found) < _VALUES:
                    found.add(word[:_VALUES])
        else:
            if mark in "{[":
                stack.append(key)
            elif mark in "}]" and stack:
                stack.pop()
            key = ""
