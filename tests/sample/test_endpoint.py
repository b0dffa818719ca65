"""A judge behind HTTP: what is sent, what is retried, and that no misbehaviour of a server costs more than its question's deadline."""

import time
from typing import Any

import pytest
from tests.sample.misbehaving import completion, serving

from cascade_rl.errors import RecipeError
from cascade_rl.records import Message, Reply, SamplingParams
from cascade_rl.sample import endpoint
from cascade_rl.sample.endpoint import GIVE_UP_AFTER, EndpointChat

QUESTION = (Message("user", "Which is better?"),)
PARAMS = SamplingParams(temperature=0.6, top_p=0.95, max_new_tokens=64)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "FIRST_WAIT_S", 0.01)


def chat(server: Any, **settings: Any) -> EndpointChat:
    return EndpointChat(**{"url": server.url, "model": "judge", "params": PARAMS, "timeout_s": 0.4, "retries": 2, **settings})


def ask(server: Any, num: int = 1, **settings: Any) -> list[Reply]:
    return chat(server, **settings).reply([QUESTION] * num, list(range(num)))


def test_what_is_sent_and_what_comes_back() -> None:
    with serving(lambda number: "good") as server:
        assert ask(server) == [Reply("Score 1: 4\nScore 2: 2\nRanking: 2")]
        ((path, headers, body),) = server.requests
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "judge", "messages": [{"role": "user", "content": "Which is better?"}],
        "temperature": 0.6, "top_p": 0.95, "max_tokens": 64, "seed": 0,
    }  # fmt: skip
    assert "Authorization" not in headers


def test_replies_come_in_the_order_of_the_questions() -> None:
    with serving(lambda number: "good") as server:

        def behave(number: int) -> Any:
            time.sleep(0.05 * (number % 3 == 0))
            return 200, {}, completion(str(server.requests[number][2]["seed"]))

        server.behave = behave
        told = ask(server, 9, concurrency=4, timeout_s=2.0)
    assert [reply.text for reply in told] == [str(seed) for seed in range(9)]


def test_no_more_questions_at_once_than_allowed() -> None:
    import threading

    live, most, lock = 0, 0, threading.Lock()

    def behave(number: int) -> str:
        nonlocal live, most
        with lock:
            live += 1
            most = max(most, live)
        time.sleep(0.02)
        with lock:
            live -= 1
        return "good"

    with serving(behave) as server:
        ask(server, 12, concurrency=3, timeout_s=5.0)
    assert most == 3


def test_reasoning_is_left_out() -> None:
    with serving(lambda number: (200, {}, completion("<think>Score 1: 1</think>\nScore: 3"))) as server:
        assert ask(server) == [Reply("\nScore: 3")]


@pytest.mark.parametrize("fault", ["error", "close_early", "half_body", "half_json", "other_schema", "no_text"])
def test_a_fault_that_passes_costs_a_try(fault: str) -> None:
    with serving(lambda number: fault if number == 0 else "good") as server:
        assert ask(server, timeout_s=3.0)[0].failure == ""
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    "fault, says",
    [
        ("error", "HTTP 500: out of memory"),
        ("close_early", "no answer: "),
        ("half_body", "closed after 61 of 123 bytes"),
        ("half_json", "not JSON: "),
        ("deep_json", "not JSON: "),
        ("other_schema", 'no chat completion: {"text"'),
        ("no_text", "content is NoneType, not text"),
    ],
)
def test_a_fault_that_stays_is_a_failure_with_its_reason(fault: str, says: str) -> None:
    with serving(lambda number: fault) as server:
        (reply,) = ask(server, timeout_s=3.0)
        assert says in reply.failure
        assert reply.failure.startswith("127.0.0.1:")
        assert len(server.requests) == 3


@pytest.mark.parametrize("fault", ["hang", "trickle", "trickle_headers"])
def test_a_server_that_hangs_costs_its_deadline_and_no_more(fault: str) -> None:
    begin = time.monotonic()
    with serving(lambda number: fault) as server:
        (reply,) = ask(server, timeout_s=0.3)
        took = time.monotonic() - begin
    assert "no answer in 0.3 s" in reply.failure
    assert took < 1.0


def test_one_question_that_hangs_holds_up_no_other() -> None:
    with serving(lambda number: "good") as server:
        server.behave = lambda number: "hang" if server.requests[number][2]["seed"] == 2 else "good"
        told = ask(server, 6, concurrency=2, timeout_s=0.4)
    assert [bool(reply.failure) for reply in told] == [False, False, True, False, False, False]


def test_retry_after_is_kept_to() -> None:
    begin = time.monotonic()
    with serving(lambda number: "busy" if number == 0 else "good") as server:
        assert ask(server, timeout_s=5.0)[0].failure == ""
    assert time.monotonic() - begin >= 1.0


def test_a_wait_beyond_the_deadline_is_not_waited() -> None:
    begin = time.monotonic()
    with serving(lambda number: "busy_for_long") as server:
        assert "HTTP 429" in ask(server, timeout_s=2.0)[0].failure
        assert len(server.requests) == 1
    assert time.monotonic() - begin < 1.0


def test_an_answer_that_was_cut_is_no_answer() -> None:
    with serving(lambda number: "cut") as server:
        assert ask(server) == [Reply("", failure="no end within max_new_tokens")]


def test_a_refusal_is_not_tried_again_and_never_tells_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_JUDGE_KEY", "sk-very-secret")
    with serving(lambda number: "refused") as server:
        (reply,) = ask(server, key_env="TEST_JUDGE_KEY", timeout_s=3.0)
        assert server.requests[0][1]["Authorization"] == "Bearer sk-very-secret"
        assert len(server.requests) == 1
    assert "HTTP 401: wrong key: Bearer ***" in reply.failure
    assert "secret" not in reply.failure
    assert "secret" not in repr(chat(server, key_env="TEST_JUDGE_KEY"))


def test_the_key_follows_no_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_JUDGE_KEY", "sk-very-secret")
    with serving(lambda number: "redirect") as server:
        assert "HTTP 307" in ask(server, key_env="TEST_JUDGE_KEY")[0].failure


@pytest.mark.parametrize("key", ["", "with\nnewline"])
def test_a_key_that_is_not_there_is_an_error_before_any_work(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_JUDGE_KEY", key)
    with pytest.raises(RecipeError, match="environment variable TEST_JUDGE_KEY") as caught:
        EndpointChat(url="http://127.0.0.1:9/v1", model="m", params=PARAMS, key_env="TEST_JUDGE_KEY")
    assert "newline" not in str(caught.value)


def test_a_dead_endpoint_is_given_up_after_some_questions() -> None:
    with serving(lambda number: "refused") as server:
        told = ask(server, 60, concurrency=2)
        assert len(server.requests) < GIVE_UP_AFTER + 2
    assert "not asked: the last 16 questions had no answer" in told[-1].failure
    assert "HTTP 401" in told[-1].failure


def test_nobody_there() -> None:
    (reply,) = EndpointChat(url="http://127.0.0.1:9/v1", model="m", params=PARAMS, timeout_s=2.0, retries=1).reply(
        [QUESTION], [0]
    )
    assert "no answer: ConnectionRefusedError" in reply.failure
