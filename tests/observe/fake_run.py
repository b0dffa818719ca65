"""A made-up run folder in the layout of a real one: a start model, four stages (the last still running), nine tasks.

python tests/observe/fake_run.py FOLDER   # writes it and its report, to look at in a browser
"""

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cascade_rl.eval.matrix import Matrix, evaluate
from cascade_rl.observe.log import Log, rollout_row
from cascade_rl.records import Group, Message, Prompt, Reward, Rollout, ToolCall, Turn
from cascade_rl.run import RunDir, write_atomic, write_json

TASKS = {
    "if": "instructions", "choice": "science", "tools": "agent", "schema": "structured", "math": "math",
    "chat": "chat", "long": "long", "code": "code", "swe": "swe",
}  # fmt: skip
STAGES = (
    ("sft", "sft", "0f3a91c2"),
    ("if-rl", "rl", "5b77d0e4"),
    ("multi-domain-rl", "rl", "91ce22ab"),
    ("mopd", "distill", "c40de18f"),
)
START = "a10b22c3"

# Chance of a right answer after: start, sft, if-rl, multi-domain-rl. IF-RL costs chat; multi-domain RL costs some of IF again.
SKILL = {
    "if": (0.08, 0.46, 0.74, 0.58), "choice": (0.24, 0.55, 0.56, 0.79), "tools": (0.00, 0.41, 0.40, 0.72),
    "schema": (0.02, 0.52, 0.55, 0.81), "math": (0.05, 0.48, 0.47, 0.50), "chat": (0.20, 0.62, 0.38, 0.44),
    "long": (0.10, 0.44, 0.45, 0.43), "code": (0.01, 0.33, 0.35, 0.37), "swe": (0.00, 0.30, 0.28, 0.31),
}  # fmt: skip

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><b>bold</b>"
TOOL_CALL = '<tool_call>\n{"name": "get_order", "arguments": {"id": 17}}\n</tool_call><|im_end|>'
TOOL_RESULT = """
<|im_start|>user
<tool_response>
{"id": 17, "state": "sent"}
</tool_response><|im_end|>
<|im_start|>assistant
<think>
"""
ANSWERS = {
    "math": ("7 times 6 is 42, and 42 and 5 is 47.\nSo the answer is 47.", "The answer is \\boxed{47}."),
    "chat": ("They ask for tea. Keep it short.", "Warm the pot, then let the leaves stand for four minutes. ☕ naïve café"),
    "code": ("", "```python\ndef double(x):\n    return 2 * x\n```"),
    "if": ("Three bullet points, no commas.", "* one\n* two\n* three"),
}


VOCABULARY: dict[str, int] = {}


def ids_of(text: str) -> tuple[int, ...]:
    """Words with their leading space, and single other characters, numbered as they come: enough of a tokenizer for a report."""
    return tuple(VOCABULARY.setdefault(piece, len(VOCABULARY)) for piece in re.findall(r" ?\w{1,6}|\W", text))


def decode(ids: Sequence[int]) -> str:
    pieces = list(VOCABULARY)
    return "".join(pieces[i] for i in ids)


def turn(context: str, answer: str, rng: np.random.Generator, *, finish: str = "stop", version: int = 0) -> Turn:
    answer_ids = ids_of(answer)
    logps = -rng.exponential(0.35, size=len(answer_ids))
    return Turn(ids_of(context), answer_ids, tuple(logps.tolist()), finish, version)  # type: ignore[arg-type]


def rollout(prompt: Prompt, index: int, rng: np.random.Generator, version: int) -> Rollout:
    start = f"<|im_start|>user\n{prompt.messages[-1].content}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    if prompt.task == "tools":
        call = Message("assistant", "", thinking="Look the order up first.", tool_calls=(ToolCall("get_order", {"id": 17}),))
        said = "Look the order up first.\n</think>\n" + TOOL_CALL
        turns = (turn(start, said, rng, version=version), turn(TOOL_RESULT, "It was sent.\n</think>\nOn its way.<|im_end|>", rng))
        told = (
            call,
            Message("tool", '{"id": 17, "state": "sent"}'),
            Message("assistant", "On its way.", thinking="It was sent."),
        )
        return Rollout(prompt, turns, told, "stop", index)
    if prompt.task == "swe":
        return Rollout(prompt, (turn(start, HOSTILE, rng),), (Message("assistant", HOSTILE, thinking=HOSTILE),), "stop", index)
    if prompt.task == "long":
        text = "It goes on and on. " * 150
        return Rollout(prompt, (turn(start + "filler " * 1500, text, rng, finish="length"),), (), "length", index)
    thinking, content = ANSWERS.get(prompt.task, ("The second one.", "The answer is (B)."))
    said = f"{thinking}\n</think>\n{content}<|im_end|>"
    return Rollout(
        prompt, (turn(start, said, rng, version=version),), (Message("assistant", content, thinking=thinking),), "stop", index
    )


def graded(task: str, split: str, number: int, chance: float, samples: int, rng: np.random.Generator, version: int = 0) -> Group:
    content = f"Question {number} of {task}: what is it?"
    prompt = Prompt(f"{task}/{split}/{number}", task, TASKS[task], split, (Message("user", content),))  # type: ignore[arg-type]
    rollouts, rewards = [], []
    for index in range(samples):
        rollouts.append(rollout(prompt, index, rng, version))
        if task == "code" and rng.random() < 0.04:
            rewards.append(Reward(None, why="the sandbox died: no answer within 10 s"))
        elif task == "if" and rng.random() < 0.2:
            rewards.append(Reward(0.5, {"bullets": 1.0, "no_commas": 0.0}, "no_commas: found 2 commas"))
        else:
            right = rng.random() < chance
            rewards.append(Reward(float(right), {"correct": float(right)}, "47 = 47" if right else 'expected "47", found "49"'))
    return Group(prompt, tuple(rollouts), tuple(rewards))


def write_evaluation(folder: Path, stage: str, checkpoint: str, split: str, place: int, prompts: int, samples: int) -> None:
    matrix, run = Matrix.load(folder), RunDir(folder)
    for number, task in enumerate(TASKS):
        # The same prompts are as easy or hard for each checkpoint; the samples are luck.
        hardness = np.random.default_rng([number, {"dev": 0, "test": 1}[split]]).normal(0, 0.2, size=prompts)
        rng = np.random.default_rng([number, place, 7])
        groups = [graded(task, split, i, SKILL[task][place] + hardness[i], samples, rng) for i in range(prompts)]
        matrix = matrix.add(evaluate(groups, stage=stage, checkpoint=checkpoint, split=split))  # type: ignore[arg-type]
        with Log(run.evals / f"{checkpoint}.{split}.rollouts" / f"{task}.jsonl") as log:
            for group in groups[:3]:
                for index in range(samples):
                    log.write(rollout_row(group, index, decode, stage=stage))
    write_json(run.evals / f"{checkpoint}.{split}.done.json", dict.fromkeys(TASKS, "fingerprint"))


def write_stage(folder: Path, index: int, name: str, kind: str, fingerprint: str, parent: str, *, steps: int, done: bool) -> None:
    stage, rng = RunDir(folder).stage(index, name, fingerprint), np.random.default_rng(index)
    with Log(stage.metrics) as metrics, Log(stage.timing) as timing:
        for step in range(1, steps + 1):
            tokens = int(rng.integers(7000, 8200))
            record = {"step": step, "grad_norm": float(0.4 + rng.exponential(0.2)), "learning_rate": 3e-6, "num_tokens": tokens}
            if kind == "sft":
                loss = 0.6 + 2.4 * math.exp(-step / 60) + rng.normal(0, 0.04)
                record |= {"loss": loss, "learning_rate": 5e-5 * (0.55 + 0.45 * math.cos(math.pi * step / steps))}
            elif kind == "rl":
                record |= {"reward": 0.45 + 0.3 * (1 - math.exp(-step / 25)) + rng.normal(0, 0.04), "loss": rng.normal(0, 0.02)}
                record |= {"unscored": 0.0, "logp_gap_max": float(abs(rng.normal(0, 1e-5)))}
            else:
                record |= {"teacher_gap": 0.03 * math.exp(-step / 10) + 0.01}
            metrics.write(record)
            timing.write({"step": step, "seconds": round(float(rng.uniform(0.4, 0.6)), 4)})
    if kind != "sft":
        with Log(stage.rollouts) as log:
            for step in range(1, steps + 1, 5):
                for task in ("if", "chat") if name == "if-rl" else ("choice", "tools", "schema"):
                    group = graded(task, "train", step, 0.5, 8, rng, version=step)
                    for i, reward in enumerate(group.rewards):
                        known = [each.value for each in group.rewards if each.value is not None]
                        mixed, scored = max(known) - min(known) > 1e-6, reward.value is not None
                        advantage = (reward.value - sum(known) / len(known)) if mixed and reward.value is not None else None
                        row = rollout_row(group, i, decode, stage=name, step=step, trained=mixed and scored, advantage=advantage)
                        log.write(row)
    if done:
        totals = {"tokens": steps * 7600, "samples": steps * 8}
        lineage = {"stage": name, "fingerprint": fingerprint, "parent": parent, "start": "nano", "totals": totals}
        write_json(
            stage.lineage,
            {**lineage, "notes": ['12 samples of "long" skipped: longer than 2048 tokens'] if kind == "sft" else []},
        )
        write_json(stage.checkpoint / "config.json", {})
        write_atomic(stage.done_file, "")


def write_recipe(folder: Path) -> None:
    arithmetic = {"sft": "8 packed sequences x 2048 tokens = 1 update; 300 updates", "rl": "32 prompts x 8 rollouts = 1 update"}
    stages = [
        {"kind": kind, "name": name, "steps": 300, "fingerprint": fingerprint, "arithmetic": arithmetic.get(kind, "")}
        for name, kind, fingerprint in STAGES
    ]
    model = {"source": "nano", "dtype": "float32"}
    write_json(
        RunDir(folder).recipe, {"name": "nano cascade", "model": model, "seed": 0, "stages": stages, "start_fingerprint": START}
    )


def write_run(folder: Path, prompts: int = 100, samples: int = 4, steps: int = 300) -> Path:
    """Four stages: three done and evaluated, the fourth in its 12th step; test rows for start and sft only."""
    write_recipe(folder)
    names = [("start", f"00-start-{START}"), *((name, f"{i:02d}-{name}-{fp}") for i, (name, _, fp) in enumerate(STAGES[:3], 1))]
    for place, (stage, checkpoint) in enumerate(names):
        write_evaluation(folder, stage, checkpoint, "dev", place, prompts, samples)
        if place < 2:
            write_evaluation(folder, stage, checkpoint, "test", place, prompts, 1)
    parent = START
    for i, (name, kind, fingerprint) in enumerate(STAGES, 1):
        running = kind == "distill"
        write_stage(folder, i, name, kind, fingerprint, parent, steps=12 if running else steps // i, done=not running)
        parent = fingerprint
    return folder


if __name__ == "__main__":
    from cascade_rl.observe.report import build

    print(build(write_run(Path(sys.argv[1]))))
