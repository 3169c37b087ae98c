"""What REST is asked and answers. Where the engine has a value for an answer, that is the answer (`Verdict`, `Recall` …)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from topicality.core.context import Context, Stage
from topicality.core.topics import Topic
from topicality.records import ConversationRecord, Exchange, Side, TopicStatus
from topicality.types import Verdict

M = TypeVar("M", bound=BaseModel)

MESSAGE = 100_000  # characters of a message
QUESTION = 20_000  # characters of a question
TOGETHER = 1_000_000  # characters of all texts of a request
PAGE = 100  # entries of a page, at most

# White space as `str.strip` has it. The pattern refuses exactly what a store does: NUL, and nothing but white space.
_BLANK = r"\x09-\x0d\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_SPOKEN = rf"^[^\x00]*[^\x00{_BLANK}][^\x00]*$"

Identifier = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=_SPOKEN)]
Text = Annotated[str, StringConstraints(max_length=MESSAGE, pattern=r"^[^\x00]*$")]
Question = Annotated[str, StringConstraints(min_length=1, max_length=QUESTION, pattern=_SPOKEN)]
At = Annotated[
    float,
    Field(ge=-62_135_596_800, le=253_402_300_799, description="Seconds since the epoch, between the years 1 and 9999."),
]
# 471.0 is a whole number in JSON, which has no other kind.
_WHOLE = BeforeValidator(lambda given: int(given) if isinstance(given, float) and given.is_integer() else given)
Tokens = Annotated[int, Field(ge=1, le=1_000_000), _WHOLE]
Role = Literal["user", "assistant", "system", "tool"]


class _Asked(BaseModel):
    """A request: JSON types are taken at their word, and what is not known is refused."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Said(_Asked):
    """One thing that was said before."""

    role: Role = "user"
    text: Text


Told = Annotated[list[Said], Field(max_length=50, description="What was said before, oldest first.")]


class CheckItem(_Asked):
    """A message to judge, with its context."""

    text: Text
    context: Told = []


class CheckRequest(CheckItem):
    """A message to judge."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"text": "Where is my refund?"}, {"text": "Write me a poem.", "context": []}]}
    )

    role: Literal["user", "assistant"] = Field("user", description="Who says it; the assistant's are output.")


class CheckManyRequest(_Asked):
    """Messages to judge, each by itself."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"items": [{"text": "Where is my refund?"}, {"text": "Write me a poem."}]}]}
    )

    items: Annotated[list[CheckItem], Field(min_length=1, max_length=PAGE)]
    role: Literal["user", "assistant"] = "user"

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        return _together(self, (text for item in self.items for text in (item.text, *(s.text for s in item.context))))


class ReceiveRequest(_Asked):
    """A user's message: it begins an exchange."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "Where is my refund for order 7?", "id": "m1"}]})

    text: Text
    id: Identifier | None = Field(None, description="Of the exchange; give one to retry safely.")
    at: At | None = None
    name: Identifier | None = Field(None, description="Who speaks, where several do.")
    on_block: Literal["fail", "keep"] = Field(
        "fail", description='What becomes of a message that the policy blocks; "keep" needs the scope override.'
    )


class ReplyRequest(_Asked):
    """The reply: it completes an exchange."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "It was sent on Monday."}]})

    text: Text
    at: At | None = None
    name: Identifier | None = None


class FailRequest(_Asked):
    """Why an exchange ends without a reply."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "upstream_timeout"}]})

    reason: Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=_SPOKEN)]


class EditRequest(_Asked):
    """A text in place of one side of an exchange."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "(removed on request)", "side": "user"}]})

    text: Text
    side: Side = "user"


class RecallRequest(_Asked):
    """What to look for."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"question": "which card did we reject?"}]})

    question: Question
    budget: Tokens = Field(1000, description="Most tokens of the answer's text.")
    conversation: Identifier | None = Field(None, description="One conversation; all of the owner's without it.")


class ContextRequest(_Asked):
    """What the messages to send are to be like."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"budget": 4000, "system": "You are a support agent.", "question": "And then?"}]
        }
    )

    budget: Tokens = Field(4000, description="Most tokens of all messages together.")
    system: Text = ""
    question: Question | None = Field(
        None, description="The message to answer; the latest pending exchange without it."
    )
    policy_note: Text = ""
    memory: Annotated[int, Field(ge=0, le=100_000), _WHOLE] = Field(
        1500, description="Most tokens of recalled passages."
    )
    everywhere: bool = Field(False, description="Recall from all of the owner's conversations.")


class DirectoryRequest(_Asked):
    """How long the list of topics may be."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"budget": 800}]})

    budget: Tokens = 800
    question: Question | None = Field(None, description="Topics that matter for it come first.")


class SegmentMessage(_Asked):
    """One message of a transcript."""

    role: Role = "user"
    text: Text
    at: At | None = None
    name: Identifier | None = None


class SegmentRequest(_Asked):
    """A transcript to cut. Nothing of it is kept."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"messages": [{"text": "My flight is late."}, {"text": "Which pasta sauce is best?"}]}]
        }
    )

    messages: Annotated[list[SegmentMessage], Field(min_length=1, max_length=2000)]
    granularity: Literal["coarse", "balanced", "fine"] = "balanced"

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        return _together(self, (message.text for message in self.messages))


class SegmentModel(BaseModel):
    """A run of messages on one topic, from index `first` to `last`, both inclusive."""

    first: int
    last: int
    topic: int
    labels: list[str]


class SegmentResponse(BaseModel):
    """A transcript, cut."""

    segments: list[SegmentModel]
    topics: list[int] = Field(description="Number of each message's topic.")
    method: str
    fallback: str | None
    notes: list[str]


class LabelledItem(CheckItem):
    """A message with the label a person gave it."""

    label: Literal["allowed", "off_topic", "blocked"]


class CalibrateRequest(_Asked):
    """Labelled messages to measure a fit of the server's policy with. Nothing is written, the policy stays as it is."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"rows": [{"text": "My refund?", "label": "allowed"}]}]})

    rows: Annotated[list[LabelledItem], Field(min_length=1, max_length=2000)]
    target: Literal["balanced", "flagged", "passed"] = "balanced"
    rate: Annotated[float, Field(gt=0, lt=1)] = Field(0.02, description='Of the targets "flagged" and "passed".')

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        return _together(self, (text for row in self.rows for text in (row.text, *(s.text for s in row.context))))


class CalibrateResponse(BaseModel):
    """How well the policy could be fitted: see `topicality.layer.calibration.Calibration.report`."""

    target: str
    rows: dict[str, int]
    sides: dict[str, Any]


class EraseRequest(_Asked):
    """Whose data is erased. The name is said so that nobody erases by mistake."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"owner": "user-42"}]})

    owner: Identifier


class EraseResponse(BaseModel):
    """How many exchanges went."""

    erased: int


class VerdictsPage(BaseModel):
    """Verdicts, in the order of the messages."""

    verdicts: list[Verdict]


class ConversationModel(BaseModel):
    """Counts of one conversation: `exchanges` and `topics` are the last numbers given."""

    owner: str
    id: str
    exchanges: int
    topics: int
    last_at: float | None = Field(description="The latest time of a message.")

    @classmethod
    def of(cls, record: ConversationRecord) -> ConversationModel:
        """A record as it is answered."""
        return cls(**{name: getattr(record, name) for name in cls.model_fields})


class ConversationsPage(BaseModel):
    """Conversations by id."""

    conversations: list[ConversationModel]
    next: str | None = Field(description="Give it as `after` for the next page; null at the end.")


class ExchangesPage(BaseModel):
    """Exchanges by sequence."""

    exchanges: list[Exchange]
    next: int | None = Field(description="Give it as `after` for the next page; null at the end.")


class TopicModel(BaseModel):
    """A topic; spans are exchange sequences, both ends inclusive."""

    id: str
    number: int
    status: TopicStatus
    labels: list[str]
    terms: list[str]
    spans: list[tuple[int, int]]
    exchanges: int
    started_at: float | None
    ended_at: float | None

    @classmethod
    def of(cls, topic: Topic) -> TopicModel:
        """A topic as it is answered."""
        values: dict[str, Any] = {name: getattr(topic, name) for name in cls.model_fields if name != "exchanges"}
        lists = {name: list(values[name]) for name in ("labels", "terms", "spans")}
        return cls(**{**values, **lists}, exchanges=topic.count)


class TopicsPage(BaseModel):
    """Topics by number."""

    topics: list[TopicModel]
    next: int | None = Field(description="Give it as `after` for the next page; null at the end.")


class ChatMessage(BaseModel):
    """A message as chat servers take it."""

    role: str
    content: str
    name: str | None = None


class ContextResponse(BaseModel):
    """The messages to send, and what was left out."""

    messages: list[ChatMessage]
    tokens: int
    stage: Stage
    dropped: int
    omitted: int
    omitted_evidence: int
    omitted_topics: int
    notes: list[str]

    @classmethod
    def of(cls, found: Context) -> ContextResponse:
        """A context as it is answered."""
        counts = ("tokens", "stage", "dropped", "omitted", "omitted_evidence", "omitted_topics")
        return cls(
            messages=[ChatMessage(role=one.role, content=one.text, name=one.name) for one in found.messages],
            notes=list(found.notes),
            **{name: getattr(found, name) for name in counts},
        )


class Fault(BaseModel):
    """One thing that is wrong with a request."""

    where: str
    what: str


class ProblemModel(BaseModel):
    """An error, by RFC 9457. `title` is for machines, `detail` for people; none has a text of a message."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[Fault] | None = None


def _together(model: M, texts: Iterable[str]) -> M:
    if sum(map(len, texts)) > TOGETHER:
        raise ValueError(f"the texts are longer than {TOGETHER:,} characters together")
    return model
