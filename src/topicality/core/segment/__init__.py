"""Topics of a conversation: online with `Segmenter`, whole transcripts with `segment`."""

from topicality.core.segment.decisions import Candidate, Decision, Segment, Segmentation
from topicality.core.segment.heads import Heads
from topicality.core.segment.offline import segment
from topicality.core.segment.online import Segmenter

__all__ = ["Candidate", "Decision", "Heads", "Segment", "Segmentation", "Segmenter", "segment"]
