"""Reading transcripts: every export, API log and chat file people have, detected by content.

`read` yields conversations, `detect` names a format, `write_jsonl` writes conversations back as OpenAI-style lines.
"""

from __future__ import annotations

from topicality.doors.transcripts.detect import FORMATS, detect
from topicality.doors.transcripts.reading import read
from topicality.doors.transcripts.record import Conversation, Problem
from topicality.doors.transcripts.writing import write_jsonl

__all__ = ["FORMATS", "Conversation", "Problem", "detect", "read", "write_jsonl"]
