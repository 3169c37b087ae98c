"""The small local model behind the proxy: a stream goes through, is kept, and is recalled for the next question."""

from __future__ import annotations

import openai
import pytest
from tests.llm.test_real_model import url  # noqa: F401 - the model's server, a fixture
from tests.server.conftest import Serve

from topicality.config import Policy
from topicality.layer.memory import Layer
from topicality.store import open_store

pytestmark = [pytest.mark.llm, pytest.mark.timeout(600)]

TOLD = "My cat is called Whiskerby and was born in Trondheim. Please say something nice about him."
ASKED = "What is the name of my cat, and where was he born?"


def test_a_stream_of_a_real_model_is_kept_and_recalled(serve: Serve, url: str) -> None:  # noqa: F811 - pytest's way
    policy = Policy(allowed=["cats and other pets"], off_topic_action="flag", direction="input")
    served = serve(layer=Layer(open_store("memory://"), policy), upstream={"url": url, "idle": 300})
    headers = {"x-topicality-conversation": "cat", "x-topicality-owner": "ann"}
    with openai.OpenAI(
        base_url=served.url, api_key="none", max_retries=0, default_headers=headers, timeout=300
    ) as client:
        with client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": TOLD}], stream=True, max_tokens=40, temperature=0
        ) as stream:
            pieces = [one.choices[0].delta.content or "" for one in stream if one.choices]
        assert len(pieces) > 5, "it came in one piece"
        reply = "".join(pieces)
        served.until(lambda: [one.status for one in served.exchanges(owner="ann")] == ["completed"])
        (kept,) = served.exchanges(owner="ann")
        assert kept.user.text == TOLD
        assert kept.reply is not None
        assert kept.reply.text == reply

        def ask(memory: str) -> tuple[int, int]:
            """Tokens that were recalled, and tokens that the model read."""
            raw = client.chat.completions.with_raw_response.create(
                model="m",
                messages=[{"role": "user", "content": ASKED}],
                max_tokens=20,
                temperature=0,
                extra_headers={"x-topicality-memory": memory},
            )
            usage = raw.parse().usage
            assert usage is not None
            return int(raw.headers.get("x-topicality-recalled", "0")), usage.prompt_tokens

        with_memory, without = ask("on"), ask("off")
    assert with_memory[0] > 10
    assert without[0] == 0
    assert with_memory[1] > without[1] + 10, "the model did not read what was recalled"
    served.until(lambda: [one.status for one in served.exchanges(owner="ann")] == ["completed"] * 2)
