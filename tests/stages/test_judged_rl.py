"""An RL stage whose judge sits behind an endpoint that misbehaves: the run goes on, shares are told, and a limit stops it."""

from pathlib import Path
from typing import Any

import pytest
from tests.model.tiny import make_tiny
from tests.sample.misbehaving import completion, serving
from tests.stages.letters import lines

from cascade_rl.errors import RecipeError, RunError
from cascade_rl.pipeline import run_recipe
from cascade_rl.recipe import parse_recipe
from cascade_rl.run import StageDir


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("qwen3", tmp_path_factory.mktemp("judged") / "model", max_position_embeddings=512)


def recipe(model: Path, url: str, judge: dict[str, Any] | None = None, **changes: Any) -> Any:
    stage = {
        "kind": "rl", "steps": 2, "prompts_per_step": 2, "group_size": 3, "max_new_tokens": 6, "learning_rate": 1e-4,
        "overlong": "mask", "dynamic_filtering": False, "tasks": [{"task": "rlhf"}], **changes,
    }  # fmt: skip
    told = {"model": "judge", "url": url, "timeout_s": 0.3, "retries": 0, **(judge or {})}
    tasks = {
        "letters": {"kind": "tests.stages.letters:Letters"},
        "rlhf": {"kind": "judged", "task": "letters", "judge": told, "thinking_only": False},
    }
    return parse_recipe({"name": "t", "model": {"source": str(model), "dtype": "float32"}, "stage": [stage], "tasks": tasks})


def run(told: Any, out: Path) -> StageDir:
    run_recipe(told, out, say=lambda text: None)
    return StageDir(next((out / "stages").iterdir()))


def verdict(number: int) -> Any:
    one, two = 1 + number % 5, 1 + number * 3 % 5
    return 200, {}, completion(f"Score 1: {one}\nScore 2: {two}\nRanking: 3")


@pytest.fixture(autouse=True)
def every_answer_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model seldom stops by itself; here it counts as if it had."""
    from cascade_rl.sample.answers import Answer

    push = Answer.push

    def pushed(self: Answer, token: int, logp: float) -> None:
        push(self, token, logp)
        if self.finish == "length":
            self.finish = "stop"

    monkeypatch.setattr(Answer, "push", pushed)


FAULTS = ("error", "hang", "close_early", "half_json", "other_schema", "busy_for_long", "no_text", "cut")


def test_single_faults_of_every_kind_cost_their_pairs_alone(model: Path, tmp_path: Path) -> None:
    with serving(lambda number: FAULTS[number // 2 % 8] if number % 2 else verdict(number)) as server:
        stage = run(recipe(model, server.url, steps=3, max_unscored=0.9), tmp_path)
        assert len(server.requests) == 3 * 2 * 3
    told = lines(stage.metrics)
    assert len(told) == 3
    assert all(0.2 < line["part.silent"] < 0.8 for line in told), "half of the questions had no verdict"
    assert all(line["unscored"] < 0.9 for line in told)
    assert any(line["num_samples"] > 0 for line in told)


def test_a_dead_endpoint_stops_the_run_with_the_reason(model: Path, tmp_path: Path) -> None:
    with (
        serving(lambda number: "error") as server,
        pytest.raises(RunError, match=r"6 of 6 rollouts are unscored, above max_unscored = 0\.5; .*no verdict in 2: .*HTTP 500"),
    ):
        run(recipe(model, server.url), tmp_path)


def test_an_endpoint_that_hangs_stops_it_in_bounded_time(model: Path, tmp_path: Path) -> None:
    with serving(lambda number: "hang") as server, pytest.raises(RunError, match=r"no answer in 0\.3 s"):
        run(recipe(model, server.url), tmp_path)


def test_a_missing_key_is_an_error_before_any_work(model: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="environment variable NO_SUCH_JUDGE_KEY is not set"):
        run(recipe(model, "http://127.0.0.1:9/v1", {"key_env": "NO_SUCH_JUDGE_KEY"}), tmp_path)
    assert not list(tmp_path.glob("stages/*"))


def test_no_key_is_ever_written(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_JUDGE_KEY", "sk-very-secret")
    with serving(lambda number: verdict(number) if number % 3 else "refused") as server:
        run(recipe(model, server.url, {"key_env": "TEST_JUDGE_KEY"}, max_unscored=1.0, rollouts_every=1), tmp_path)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any("refused" in file.read_text(errors="ignore") or "HTTP 401" in file.read_text(errors="ignore") for file in files)
    assert not [file for file in files if b"sk-very-secret" in file.read_bytes()]
