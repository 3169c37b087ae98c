"""Routes that read memory: recall, context, topics, directory, drift."""

from __future__ import annotations

from fastapi import APIRouter

from topicality.core.directory import Directory
from topicality.core.drift import Reading as DriftReading
from topicality.core.topics import Topic
from topicality.doors.server.problems import RefusedError
from topicality.doors.server.rest.asking import AfterNumber, ConversationId, Limit, Reading
from topicality.doors.server.rest.errors import answers
from topicality.doors.server.rest.models import (
    ContextRequest,
    ContextResponse,
    DirectoryRequest,
    RecallRequest,
    TopicModel,
    TopicsPage,
)
from topicality.layer.recall import Recall

router = APIRouter(tags=["memory"])


@router.post("/recall", responses=answers(404))
async def recall(asking: Reading, wish: RecallRequest) -> Recall:
    """The passages that matter for a question, within a token budget; of one conversation or of all of the owner's."""

    def found() -> Recall:
        if wish.conversation is None:
            return asking.layer.recall(wish.question, wish.budget, owner=asking.owner)
        return asking.known(wish.conversation).recall(wish.question, wish.budget)

    return await asking.run(found)


@router.post("/conversations/{conversation}/context", responses=answers(404))
async def context(asking: Reading, conversation: ConversationId, wish: ContextRequest) -> ContextResponse:
    """The messages to send to a model, within a token budget. Nothing is written."""

    def built() -> ContextResponse:
        talk = asking.known(conversation) if wish.question is None else asking.talk(conversation)
        found = talk.context(
            wish.budget,
            wish.system,
            question=wish.question,
            policy_note=wish.policy_note,
            memory=wish.memory,
            everywhere=wish.everywhere,
        )
        return ContextResponse.of(found)

    return await asking.run(built)


@router.get("/conversations/{conversation}/topics", responses=answers(404))
async def topics(
    asking: Reading, conversation: ConversationId, after: AfterNumber = 0, limit: Limit = 50
) -> TopicsPage:
    """What a conversation has been about, by number."""

    def listed() -> list[Topic]:
        return [topic for topic in asking.known(conversation).topics() if topic.number > after][: limit + 1]

    found = await asking.run(listed)
    page = [TopicModel.of(topic) for topic in found[:limit]]
    return TopicsPage(topics=page, next=page[-1].number if len(found) > limit else None)


@router.post("/conversations/{conversation}/directory", responses=answers(404))
async def directory(asking: Reading, conversation: ConversationId, wish: DirectoryRequest) -> Directory:
    """The list of topics as text, as much of it as fits a token budget."""
    return await asking.run(lambda: asking.known(conversation).directory(wish.budget, question=wish.question or ""))


@router.get("/conversations/{conversation}/drift", responses=answers(404, 409))
async def drift(asking: Reading, conversation: ConversationId) -> DriftReading:
    """How far a conversation has drifted, as of its last message."""

    def read() -> DriftReading | None:
        return asking.known(conversation).drift()

    found = await asking.run(read)
    if found is None:
        raise RefusedError(409, "no_policy", "the server judges nothing: it was started without a policy")
    return found
