"""Routes that judge and keep nothing: check, segment, calibrate."""

from __future__ import annotations

from fastapi import APIRouter

from topicality.core.calibrate import Target
from topicality.doors.server.rest.asking import Asking, Reading
from topicality.doors.server.rest.errors import answers
from topicality.doors.server.rest.models import (
    CalibrateRequest,
    CalibrateResponse,
    CheckItem,
    CheckManyRequest,
    CheckRequest,
    SegmentModel,
    SegmentRequest,
    SegmentResponse,
    VerdictsPage,
)
from topicality.layer.calibration import calibrate
from topicality.layer.evaluate import LabelledRow
from topicality.layer.reading import Turn
from topicality.layer.segmentation import TopicSegmenter, labels_of
from topicality.types import Message, Verdict

router = APIRouter(tags=["judging"])


@router.post("/check", responses=answers(409))
async def check(asking: Reading, wish: CheckRequest) -> Verdict:
    """Judge one message by the server's policy. Nothing is kept."""
    return await asking.run(asking.guard.check, wish.text, _context(wish), role=wish.role, conversation=asking.owner)


@router.post("/check/many", responses=answers(409))
async def check_many(asking: Reading, wish: CheckManyRequest) -> VerdictsPage:
    """Judge messages, each by itself, at the price of one call of the encoder."""
    texts, contexts = [item.text for item in wish.items], [_context(item) for item in wish.items]
    verdicts = await asking.run(asking.guard.check_many, texts, contexts, role=wish.role, conversation=asking.owner)
    return VerdictsPage(verdicts=verdicts)


@router.post("/segment", responses=answers())
async def segment(asking: Reading, wish: SegmentRequest) -> SegmentResponse:
    """Cut a transcript into topics. Nothing is kept."""
    return await asking.run(_segmented, asking, wish)


@router.post("/calibrate", responses=answers(409))
async def calibrate_report(asking: Reading, wish: CalibrateRequest) -> CalibrateResponse:
    """How well the server's policy could be fitted to labelled messages. Nothing is written, the policy stays as it is."""
    rows = [LabelledRow(row.text, row.label, context=_context(row)) for row in wish.rows]
    target = Target(wish.target, wish.rate)
    fitted = await asking.run(calibrate, asking.guard.policy, rows, embedder=asking.layer.embedder, target=target)
    return CalibrateResponse(**fitted.report)


def _segmented(asking: Asking, wish: SegmentRequest) -> SegmentResponse:
    said = [Message(one.role, one.text, one.at, name=one.name) for one in wish.messages]
    found = TopicSegmenter(asking.layer.embedder, granularity=wish.granularity).segment(said)
    labels = labels_of(found, said)
    segments = [
        SegmentModel(first=one.first, last=one.last, topic=one.topic, labels=list(labels.get(one.topic, ())))
        for one in found.segments
    ]
    return SegmentResponse(
        segments=segments,
        topics=list(found.topics),
        method=found.method,
        fallback=found.fallback,
        notes=list(found.notes),
    )


def _context(item: CheckItem) -> tuple[Turn, ...]:
    return tuple(Message(said.role, said.text) for said in item.context)
