"""What long prompts cost: tokens a second and peak memory of sampling and of a training step, from 1,024 to 16,384 tokens.

    python benchmarks/long_context.py                                  # the nano model and SmolLM2-135M-Instruct
    python benchmarks/long_context.py --models nano --lengths 1024 32000

Sampling: one prompt, 8 answers of 32 tokens that share it; prefill is the time to the first token, decode that of the others.
Training: one GRPO update on such a group in micro-batches of 8,192 tokens, activations recomputed in the backward pass with
--checkpointing; its tokens are those computed, the prompt once. A prompt that the model's context has no room for is refused, and the
refusal printed. The nano model's weights are random, which does not matter: answers never stop early. Each figure is of a process of
its own; those with "cpu" count processor seconds, which on one thread depend less on what else the machine does. Memory is the largest
resident size since the model was loaded and warm; "beyond" is how far that is above the size then.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NUM_ANSWERS, NUM_NEW = 8, 32
MICROBATCH_TOKENS = 8192
WARM_TOKENS = 64


def status_mb(field: str) -> float:
    """A size in /proc/self/status: VmRSS now, VmHWM the largest so far."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024


def forget_peak() -> float:
    """Lets the largest size start anew, where the kernel allows that; gives the size now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return status_mb("VmRSS")


def context(length: int, vocab_size: int) -> list[int]:
    """Ids without a pattern."""
    return [(977 * place * place + 31 * place) % (vocab_size - 300) + 300 for place in range(length)]


def sampling(folder: str, dtype: str, length: int) -> dict[str, float]:
    from cascade_rl.records import SamplingParams
    from cascade_rl.sample.local import LocalSampler

    sampler = LocalSampler(folder, dtype=dtype)
    sampler.sample([context(WARM_TOKENS, sampler.config.vocab_size)], 2, SamplingParams(max_new_tokens=4), [0])
    ids, loaded = context(length, sampler.config.vocab_size), forget_peak()
    begin, cpu_begin = time.perf_counter(), time.process_time()
    sampler.sample([ids], 1, SamplingParams(max_new_tokens=1), [0])
    prefill_s, prefill_cpu_s = time.perf_counter() - begin, time.process_time() - cpu_begin
    begin = time.perf_counter()
    sampler.sample([ids], NUM_ANSWERS, SamplingParams(max_new_tokens=NUM_NEW), [0])
    decode_s = max(1e-9, time.perf_counter() - begin - prefill_s)
    return {
        "prefill_tok_s": length / prefill_s, "prefill_cpu_tok_s": length / prefill_cpu_s,
        "decode_tok_s": NUM_ANSWERS * (NUM_NEW - 1) / decode_s,
        "peak_mb": status_mb("VmHWM"), "beyond_mb": status_mb("VmHWM") - loaded,
    }  # fmt: skip


def training(folder: str, dtype: str, length: int, checkpointing: bool) -> dict[str, float]:
    import numpy as np

    from cascade_rl.algo.policy_loss import PolicyLoss
    from cascade_rl.model.optim import AdamW
    from cascade_rl.model.policy import Policy
    from cascade_rl.records import Sample
    from cascade_rl.stages.step import update

    policy = Policy(folder, dtype=dtype, checkpointing=checkpointing)
    optim = AdamW(policy.model, betas=(0.9, 0.95), weight_decay=0.0)
    rng = np.random.default_rng(0)

    def group(prompt: list[int]) -> list[Sample]:
        samples = []
        for number in range(NUM_ANSWERS):
            ids = np.array([*prompt, *rng.integers(300, policy.model.config.vocab_size, NUM_NEW)], np.int32)
            place = np.arange(len(ids)) >= len(prompt)
            told = np.where(place, -1.0, 0.0).astype(np.float32)
            samples.append(Sample(ids, place, logp_sampler=told, advantage=told * (-1) ** number))
        return samples

    def step(prompt: list[int]) -> tuple[int, float, float]:
        begin, cpu_begin = time.perf_counter(), time.process_time()
        stats = update(
            policy, optim, group(prompt), PolicyLoss(importance="truncate"), lr=1e-9,
            max_tokens_per_microbatch=MICROBATCH_TOKENS,
        )  # fmt: skip
        return stats.num_computed, time.perf_counter() - begin, time.process_time() - cpu_begin

    step(context(WARM_TOKENS, policy.model.config.vocab_size))
    loaded = forget_peak()
    computed, seconds, cpu_s = step(context(length, policy.model.config.vocab_size))
    return {
        "tok_s": computed / seconds, "cpu_tok_s": computed / cpu_s, "seconds": seconds,
        "peak_mb": status_mb("VmHWM"), "beyond_mb": status_mb("VmHWM") - loaded,
    }  # fmt: skip


def refused(folder: str, length: int) -> str:
    """What the renderer's check says of a prompt of that length; "" where there is room."""
    from cascade_rl.errors import DataError
    from cascade_rl.model.render import load_renderer
    from cascade_rl.model.sources import load_tokenizer
    from cascade_rl.records import Message, Prompt
    from cascade_rl.sample.rollout import check_longest

    renderer = load_renderer(load_tokenizer(folder))
    text = renderer.decode(context(length, len(renderer.tokenizer)))
    prompt = Prompt("long/test/0", "long", "long", "test", (Message("user", text),))
    try:
        check_longest([prompt], renderer)
    except DataError as error:
        return str(error)
    return ""


def model_folder(name: str, work: Path) -> str:
    """The model's folder; nano is made here, with room for 32,768 tokens."""
    from cascade_rl.model.sources import resolve

    if name != "nano":
        return str(resolve(name))
    from cascade_rl.model.nano import NanoConfig, make_nano
    from cascade_rl.tasks.nano import corpus

    make_nano(work / "nano", corpus(), NanoConfig(max_context=32_768))
    return str(work / "nano")


def measure(job: dict) -> dict:
    """One figure, from a process of its own."""
    command = [sys.executable, __file__, "--job", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def run_job(job: dict) -> dict:
    import torch

    torch.set_num_threads(job["threads"])
    if told := refused(job["folder"], job["length"]):
        return {"refused": told}
    if job["what"] == "sampling":
        return sampling(job["folder"], job["dtype"], job["length"])
    return training(job["folder"], job["dtype"], job["length"], job["checkpointing"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["nano", "smollm2"], help="nano, smollm2 or folders")
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024, 4096, 16384])
    parser.add_argument("--what", nargs="+", default=["sampling", "training"], choices=["sampling", "training"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "auto"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        print(json.dumps(run_job(json.loads(args.job))))
        return
    told = []
    with tempfile.TemporaryDirectory() as work:
        for model in args.models:
            folder = model_folder(model, Path(work))
            for what in args.what:
                for length in args.lengths:
                    job = {"folder": folder, "what": what, "length": length, "dtype": args.dtype, "threads": args.threads,
                           "checkpointing": args.checkpointing}  # fmt: skip
                    figures = measure(job)
                    told.append({"model": model, **job, **figures})
                    shown = ", ".join(
                        f"{k} {v:,.{v < 10:d}f}" if isinstance(v, int | float) else f"{k}: {v}" for k, v in figures.items()
                    )
                    print(f"{model} {what} {length:,}: {shown}", flush=True)
    if args.out:
        args.out.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
