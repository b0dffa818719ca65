"""How long one GRPO step takes: the RL stage of this package and TRL's GRPOTrainer, side by side in one run.

    python benchmarks/grpo_step.py --trl-python ~/trl/bin/python    # SmolLM2-135M, bf16, one step each
    python benchmarks/grpo_step.py --steps 3                        # ours alone: TRL is skipped without its Python

16 prompts of about 60 tokens x 8 answers of at most 128 tokens at temperature 1, one optimizer step (AdamW) over all of them, no KL
model; both score the same questions with the same reward function. Ours is the stage as `cascade run` runs it, and its figures are
those of the stage's timing.jsonl and metrics.jsonl. TRL lives in an environment of its own (`pip install torch trl`) and is set up for
speed as its documentation tells: bf16 weights, no reference model (beta 0), one generation for the whole step, no gradient
checkpointing, fused AdamW, micro-batches of --trl-batch. Each way is a process of its own, one after the other in each round, so that its
peak of resident memory is its own; it is that of the step, loading included. Every step counts, the first one too. `rest` is
what is neither sampling, grading nor training. `cpu s` is the processor time of a whole process over its steps, loading included: it
depends less on what else the machine does.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollout import GROUP_SIZE, MAX_NEW, NUM_PROMPTS, make_texts, peak_mb

WAYS = ("ours", "trl")
PARTS = ("sampling", "grading", "training", "rest")


def vowels(completions: list[list[dict[str, str]]], **columns: Any) -> list[float]:
    """The reward of both ways: the share of vowels among an answer's letters, which hardly ever is the same in a whole group, minus 1.

    Never above 0, so that it also stays as it is where an answer was cut: all 128 answers train.
    """
    texts = [completion[0]["content"].lower() for completion in completions]
    return [sum(char in "aeiou" for char in text) / max(1, sum(char.isalpha() for char in text)) - 1 for text in texts]


def make_rows() -> list[dict[str, Any]]:
    return [{"prompt": [{"role": "user", "content": text}]} for text in make_texts()]


# --- the ways: each gives, for every step, the seconds of its parts, of the whole, and the tokens it sampled ------------------------


def ours(job: dict[str, Any], out: Path) -> list[dict[str, float]]:
    from cascade_rl.pipeline import run_recipe
    from cascade_rl.recipe import parse_recipe

    rows = out / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in make_rows()))
    stage = {
        "kind": "rl", "steps": job["steps"], "prompts_per_step": NUM_PROMPTS, "group_size": GROUP_SIZE, "max_new_tokens": MAX_NEW,
        "learning_rate": 1e-6, "microbatch_tokens": job["microbatch_tokens"], "dynamic_filtering": False, "overlong": "zero",
        "save_every": 0, "rollouts_every": 0, "tasks": [{"task": "vowels"}],
    }  # fmt: skip
    task = {"kind": "rows", "path": str(rows), "reward": "grpo_step:vowels", "split": "train"}
    table = {"name": "step", "model": {"source": job["folder"], "dtype": "bfloat16"}, "tasks": {"vowels": task}, "stage": [stage]}
    run_recipe(parse_recipe(table), out / "run", say=lambda text: print(text, file=sys.stderr))
    (place,) = (out / "run" / "stages").iterdir()
    told = []
    for timing, metrics in zip(read(place / "timing.jsonl"), read(place / "metrics.jsonl"), strict=True):
        parts = {part: timing[f"{part}_s"] for part in PARTS[:3]}
        tokens = metrics["mean_tokens"] * NUM_PROMPTS * GROUP_SIZE
        told.append({**parts, "seconds": timing["seconds"], "tokens": tokens, "trained": metrics["num_samples"]})
    return told


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def trl(job: dict[str, Any], out: Path) -> list[dict[str, float]]:
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=str(out), max_steps=job["steps"], learning_rate=1e-6, lr_scheduler_type="constant", use_cpu=True, bf16=True,
        per_device_train_batch_size=job["trl_batch"], gradient_accumulation_steps=NUM_PROMPTS * GROUP_SIZE // job["trl_batch"],
        num_generations=GROUP_SIZE, max_completion_length=MAX_NEW, temperature=1.0, top_p=1.0, top_k=0, beta=0.0, num_iterations=1,
        adam_beta2=0.95, max_grad_norm=1.0, gradient_checkpointing=False, model_init_kwargs={"dtype": "bfloat16"},
        dataloader_pin_memory=False, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    clock = Clock()

    class Steps(TrainerCallback):
        """When a step begins and ends. The optimizer's own time is part of the training."""

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            clock.begin_step()

        def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            clock.parts["optimizer"] = time.perf_counter() - clock.training_ended

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            clock.end_step()

    trainer = GRPOTrainer(
        model=job["folder"], reward_funcs=vowels, args=config, train_dataset=Dataset.from_list(make_rows()),
        processing_class=AutoTokenizer.from_pretrained(job["folder"]), callbacks=[Steps()],
    )  # fmt: skip
    clock.watch(trainer, "_generate_single_turn", "sampling", clock.count_tokens)
    clock.watch(trainer, "_calculate_rewards", "grading")
    clock.watch(trainer, "_prepare_inputs", "preparing")
    clock.watch(trainer, "training_step", "all", clock.note_end)
    trainer.train()
    return clock.steps


class Clock:
    """The seconds that named methods of a trainer take within each optimizer step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.training_ended = 0.0

    def begin_step(self) -> None:
        self.parts: dict[str, float] = {}
        self.tokens, self.began = 0, time.perf_counter()

    def watch(self, owner: Any, method: str, part: str, after: Callable[[Any], None] = lambda result: None) -> None:
        original = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            result = original(*args, **kwargs)
            self.parts[part] = self.parts.get(part, 0.0) + time.perf_counter() - begin
            after(result)
            return result

        setattr(owner, method, timed)

    def count_tokens(self, result: Any) -> None:
        self.tokens += sum(map(len, result[0]))

    def note_end(self, result: Any) -> None:
        self.training_ended = time.perf_counter()

    def end_step(self) -> None:
        told = self.parts
        training = told["all"] - told["preparing"] + told["optimizer"]  # sampling and grading are within the preparing
        self.steps.append(
            {"sampling": told["sampling"], "grading": told["grading"], "training": training, "tokens": self.tokens}
            | {"seconds": time.perf_counter() - self.began, "trained": NUM_PROMPTS * GROUP_SIZE}
        )  # fmt: skip


def serve(way: str, job: dict[str, Any]) -> None:
    """A way's process: runs its steps, then prints one JSON line."""
    replies = os.fdopen(os.dup(1), "w")  # what libraries print must not mix with it
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as out:
        steps = {"ours": ours, "trl": trl}[way](job, Path(out))
    print(json.dumps({"steps": steps, "peak_mb": peak_mb(), "cpu_s": time.process_time()}), file=replies, flush=True)


# --- the comparison -----------------------------------------------------------------------------------------------------------------


def run_way(way: str, python: str, job_file: str) -> dict[str, Any]:
    command = [python, str(Path(__file__).resolve()), "--serve", way, "--job", job_file]
    env = {"GOMP_SPINCOUNT": "1000", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", **os.environ}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise SystemExit(f'the way "{way}" failed:\n{done.stderr[-3000:]}')
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help='a model folder, or "smollm2"')
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--trl-python", help="the Python of an environment with TRL")
    parser.add_argument("--steps", type=int, default=1, help="steps in each process")
    parser.add_argument("--rounds", type=int, default=1, help="processes of each way, in turns")
    parser.add_argument("--microbatch-tokens", type=int, default=768, help="of ours")
    parser.add_argument("--trl-batch", type=int, default=16, help="rollouts of a micro-batch of TRL's")
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--serve", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, json.loads(Path(args.job).read_text()))
        return

    from cascade_rl.model.sources import resolve

    job = {
        "folder": str(resolve(args.model)), "steps": args.steps, "microbatch_tokens": args.microbatch_tokens,
        "trl_batch": args.trl_batch,
    }  # fmt: skip
    if "trl" in args.ways and not args.trl_python:
        print("trl: skipped; name the Python of its environment with --trl-python")
    ways = [way for way in args.ways if way != "trl" or args.trl_python]
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job, file)
        file.flush()
        for _ in range(args.rounds):
            for way in ways:
                found[way].append(run_way(way, args.trl_python if way == "trl" else sys.executable, file.name))
                print(f"  {way}: {json.dumps(found[way][-1])}", file=sys.stderr, flush=True)
    report(found, args.json)


def report(found: dict[str, list[dict[str, Any]]], path: str | None) -> None:
    """One line a way: medians over its steps, in seconds; shares of the step; ratios to ours."""
    figures = {}
    for way, runs in found.items():
        steps = [step for run in runs for step in run["steps"]]
        for step in steps:
            step["rest"] = step["seconds"] - sum(step[part] for part in PARTS[:3])
        row = {name: statistics.median(step[name] for step in steps) for name in ("seconds", *PARTS, "tokens", "trained")}
        cpu_s = sum(run["cpu_s"] for run in runs) / len(steps)
        figures[way] = {**row, "cpu_s": cpu_s, "peak_mb": max(run["peak_mb"] for run in runs), "steps": len(steps)}
    base = figures.get("ours")
    heads = ("s a step", *PARTS, "rest %", "cpu s", "tokens", "peak MB", "x ours", "x ours, cpu", "ours' memory")
    print(f"{'way':6}" + "".join(f"{head:>13}" for head in heads))
    for way, row in figures.items():
        cells = [f"{row[name]:.2f}" for name in ("seconds", *PARTS)]
        cells += [f"{row['rest'] / row['seconds']:.1%}", *(f"{row[name]:.0f}" for name in ("cpu_s", "tokens", "peak_mb"))]
        if base:
            cells += [f"{row[name] / base[name]:.2f}" for name in ("seconds", "cpu_s")] + [
                f"{base['peak_mb'] / row['peak_mb']:.0%}"
            ]
        print(f"{way:6}" + "".join(f"{cell:>13}" for cell in cells))
    if path:
        Path(path).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
