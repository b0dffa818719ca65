"""recipes/smollm2.toml: its stages and their tasks, its data missed before any work, and its whole shape on a tiny random model."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.cli import main
from cascade_rl.eval.matrix import Matrix
from cascade_rl.model.chatml import chat_template
from cascade_rl.model.sources import load_tokenizer
from cascade_rl.pipeline import run_recipe
from cascade_rl.plan import starts
from cascade_rl.recipe import Recipe, load_recipe
from cascade_rl.run import RunDir
from cascade_rl.shortfall import shortfalls
from tests.model.tiny import make_tiny
from tests.sandbox.host import needs_sandbox

RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "smollm2.toml"
PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STAGES = [
    ("sft", "SFT"), ("if-rl", "RL"), ("multi-rl", "RL"), ("select", "Select"), ("mopd", "Distill"), ("judge", "SFT"),
    ("rlhf", "RL"), ("long-rl", "RL"), ("code-rl", "RL"), ("swe-rl", "RL"), ("select-again", "Select"), ("mopd-again", "Distill"),
]  # fmt: skip
# One step of everything, of as little as there is; a random model is right nowhere, and its judge says nothing that can be read.
SMALL = [
    *(f"tasks.{name}.num_train=8" for name in ("instructions", "choice", "schema", "math", "chat", "judging", "needle", "program",
                                               "repair")),
    *(f"tasks.{name}.num_prompts=4" for name in ("ifeval", "mmlu", "bfcl", "gsm8k", "mbpp", "made")),
]  # fmt: skip
SMALLEST = [
    *SMALL, "model.dtype=float32", "eval.dev=2", "eval.test=0", "eval.max_new_tokens=4", "tasks.needle.tokenizer=",
    "tasks.needle.lengths=[30]", "tasks.needle.num_others=1", "tasks.rlhf.judge.max_new_tokens=4", "rlhf.max_unscored=1.0",
    'mopd.teachers={ math = "start" }',
    *(f"{name}.steps=1" for name, kind in STAGES if kind != "Select"),
    *(f"{name}.pack_tokens=4096" for name in ("sft", "judge")),
    *(f"{name}.{told}" for name, kind in STAGES if kind in ("RL", "Distill")
      for told in ("prompts_per_step=2", "group_size=2", "max_new_tokens=4")),
]  # fmt: skip


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_data(folder: Path) -> None:
    """Small rows of our own in the layouts of the published sets, enough of each that no split is empty."""
    several = range(24)
    ids = [601 + n for n in several] + [511 + n for n in range(4)]
    codes = {n: f"def add_{n}(x):\n    return x + {n}" for n in several}
    write_jsonl(
        folder / "seed_tasks.jsonl",
        [{"id": f"seed_{n}", "instruction": f"Say {n}.", "instances": [{"input": "", "output": f"It is {n}."}]} for n in several],
    )
    write_jsonl(
        folder / "ifeval_input_data.jsonl",
        [{"prompt": f"Tell {n}.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]} for n in several],
    )
    for part in ("train", "test"):
        rows = [{"question": f"Of {part}: {n} and 2?", "answer": f"{n}+2={n + 2}\n#### {n + 2}"} for n in several]
        write_jsonl(folder / "gsm8k" / f"{part}.jsonl", rows)
    rows = [{"question": f"What is {n}+1?", "choices": [str(n), str(n + 1)], "answer": 1} for n in several]
    write_jsonl(folder / "mmlu_stem_test.jsonl", rows)
    for name, told in bfcl_files(several):
        write_jsonl(folder / "bfcl" / name, told)
    write_jsonl(
        folder / "mbpp.jsonl",
        [{"text": f"Add {n}.", "code": codes[n % 24], "task_id": id, "test_setup_code": "",
          "test_list": [f"assert add_{n % 24}(1) == {n % 24 + 1}"]} for n, id in enumerate(ids)],
    )  # fmt: skip
    write_jsonl(
        folder / "repositories.jsonl",
        [{"id": f"{n}", "issue": f"`add_{n}` is wrong.", "files": {f"add_{n}.py": codes[n].replace("+", "-")}, "path": f"add_{n}.py",
          "old": f"    return x - {n}", "new": f"    return x + {n}", "modules": [f"add_{n}"],
          "fail_to_pass": [f"assert add_{n}(1) == {n + 1}"], "pass_to_pass": []} for n in several[1:]],
    )  # fmt: skip


def bfcl_files(several: Sequence[int]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    parameters = {"type": "dict", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    function = {"name": "note", "description": "Notes a number.", "parameters": parameters}
    for category in ("simple_python", "multiple", "parallel", "irrelevance"):
        name = f"BFCL_v4_{category}.json"
        yield (
            name,
            [
                {
                    "id": f"{category}_{n}",
                    "question": [[{"role": "user", "content": f"Note {n}: {category}."}]],
                    "function": [function],
                }
                for n in several
            ],
        )
        if category != "irrelevance":
            truth = [{"id": f"{category}_{n}", "ground_truth": [{"note": {"n": [n]}}]} for n in several]
            yield f"possible_answer/{name}", truth


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to run from, with all that the recipe reads."""
    folder = tmp_path_factory.mktemp("smollm2")
    make_data(folder / "data")
    return folder


def test_its_stages_are_the_papers_and_have_teachers_judges_and_rows(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)
    recipe = load_recipe(RECIPE, SMALL)
    assert [(stage.name, type(stage).__name__) for stage in recipe.stages] == STAGES
    begins = dict(zip((stage.name for stage in recipe.stages), starts(recipe.stages), strict=True))
    assert begins["judge"] == "sft"
    assert begins["rlhf"] == "mopd", "the judge is no student"
    measured = {recipe.tasks[name].domain for name in recipe.eval.tasks}
    trained = {recipe.tasks[name].domain for stage in recipe.stages for name in stage.rewarded_tasks()}
    assert trained <= measured
    assert trained >= {"if", "choice", "tools", "schema", "chat", "long", "code", "swe"}
    assert shortfalls(recipe) == []
    for name in {name for stage in recipe.stages for name in stage.task_names()} - {"needle"}:  # whose tokenizer is SmolLM2's
        assert recipe.tasks[name].prompts("train")


def test_every_file_that_is_missing_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = [str(RECIPE), "--set", 'if-rl.tasks=[{ task = "instructions", keep = "data/keep.json" }]']
    assert main(["run", *argv]) == 1
    told = capsys.readouterr().err
    assert "8 of the files and folders that it reads do not exist" in told
    for name in ("seed_tasks.jsonl", "ifeval_input_data.jsonl", "gsm8k", "mmlu_stem_test.jsonl", "bfcl", "mbpp.jsonl",
                 "repositories.jsonl", "keep.json"):  # fmt: skip
        assert f"\n  data/{name}: " in told, name
    assert 'data/bfcl: task "bfcl", from the bfcl-eval package' in told
    assert 'data/seed_tasks.jsonl: rows of stage "sft", from yizhongw/self-instruct on GitHub' in told
    assert not list(tmp_path.iterdir())
    assert main(["plan", *argv]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "data that is not there yet: data/bfcl, data/gsm8k, data/ifeval_input_data.jsonl, data/mbpp.jsonl," in told
    assert told.count("data/keep.json is no file; make it with `cascade filter CHECKPOINT --tasks instructions") == 1
    assert "mopd-again │ distill │ 20 │ 480 │ 1,920 │" in told


def test_a_file_of_a_task_that_nothing_uses_is_not_missed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)
    assert shortfalls(load_recipe(RECIPE, ["tasks.spare.kind=gsm8k", "tasks.spare.path=nowhere.jsonl"])) == []


@pytest.mark.slow
@needs_sandbox
def test_every_stage_runs_on_a_random_model(
    data: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    source = make_tiny("qwen3", tmp_path_factory.mktemp("model"), max_position_embeddings=8192)
    (source / "chat_template.jinja").write_text(PLAIN)  # which knows neither tools nor thinking, as SmolLM2's own
    recipe: Recipe = load_recipe(RECIPE, [*SMALLEST, f"model.source={source}"])
    run = run_recipe(recipe, data / "run", say=lambda text: None)
    matrix = Matrix.load(run.root)
    rows = [name for name, kind in STAGES if kind != "Select" and name != "judge"]
    assert [name.split("-", 1)[1].rsplit("-", 1)[0] for name in matrix.checkpoints("dev")] == rows
    for checkpoint in matrix.checkpoints("dev"):
        assert matrix.scores(checkpoint, "dev").keys() == set(recipe.eval.tasks)
    folders = sorted((run.root / "stages").glob("*/checkpoint"))
    assert len(folders) == len(STAGES)
    for folder in folders:  # rendered anywhere as it was trained
        assert load_tokenizer(folder).chat_template == chat_template()
    assert RunDir(run.root).report.is_file()
