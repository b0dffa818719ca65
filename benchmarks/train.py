"""How fast an update is: SmolLM2-135M, rows of mixed lengths, forward + backward + AdamW, against plain transformers.

    python benchmarks/train.py                       # every way, 3 interleaved repeats
    python benchmarks/train.py --ways padded bf16    # some of them
    python benchmarks/train.py --prompt-share 0.4    # two fifths of each row are prompt, without loss

Ways: `padded` is what transformers does by default: model(input_ids, attention_mask, labels) in float32 with torch's AdamW, in
micro-batches of 8 rows (the Trainer's default), each padded to its longest row. `float32`, `bf16` (float32 masters) and `compiled`
(the same with torch.compile) are ours. Each measurement is a process of its own: warm-up updates on short rows, one timed update,
and the peak of its resident memory. Rows have random ids; their lengths are the quantiles of a lognormal distribution (median 110,
sigma 0.6: 30 to 400 tokens, mean 131), shuffled. Tokens/s counts real tokens only. The share of the matmul rate is the time that
the bare matrix multiplications of the update take (forward, input gradient and weight gradient of each linear layer and of the
head, at the update's own shapes and in its type) over the time of the update, both in processor time: that one does not
depend on what else the machine does, as long as waiting threads sleep (OMP_WAIT_POLICY=PASSIVE, set for every way).
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

WAYS = ("padded", "float32", "bf16", "compiled")
MICRO_ROWS = 8


def make_rows(num_rows: int, vocab_size: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    quantiles = [statistics.NormalDist().inv_cdf((i + 0.5) / num_rows) for i in range(num_rows)]
    lengths = rng.permutation([round(110 * math.exp(0.6 * z)) for z in quantiles])
    return [rng.integers(3, vocab_size, length).astype(np.int32) for length in lengths]


def trained(row: np.ndarray, prompt_share: float) -> np.ndarray:
    return np.arange(len(row)) >= max(1, int(prompt_share * len(row)))


def random_folder(folder: str) -> str:
    """SmolLM2-135M's shape with random weights, for machines that cannot fetch it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from cascade_rl.model.nano import train_tokenizer

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    train_tokenizer(["a few words"], vocab_size=300, max_context=8192).save_pretrained(folder)
    return folder


def padded_update(folder: str, prompt_share: float):
    """Plain transformers: one optimizer step over micro-batches of padded rows."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    optim = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.98), weight_decay=0.1)

    def update(rows: list[np.ndarray]) -> float:
        total, count = 0.0, sum(int(trained(row, prompt_share).sum()) for row in rows)
        for lo in range(0, len(rows), MICRO_ROWS):
            part = rows[lo : lo + MICRO_ROWS]
            longest = max(len(row) for row in part)
            ids = torch.tensor(np.stack([np.pad(row, (0, longest - len(row))) for row in part]), dtype=torch.long)
            mask = torch.tensor(np.stack([np.pad(np.ones(len(row)), (0, longest - len(row))) for row in part]), dtype=torch.long)
            kept = np.stack([np.pad(trained(row, prompt_share), (0, longest - len(row))) for row in part])
            labels = ids.masked_fill(~torch.from_numpy(kept), -100)
            loss = model(input_ids=ids, attention_mask=mask, labels=labels, num_items_in_batch=count, use_cache=False).loss
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        optim.zero_grad()
        return total

    return update


def our_update(folder: str, way: str, prompt_share: float, microbatch_tokens: int):
    from cascade_rl.model.optim import AdamW
    from cascade_rl.model.policy import Policy
    from cascade_rl.records import Sample
    from cascade_rl.stages.step import update as one_update

    policy = Policy(folder, dtype="float32" if way == "float32" else "bfloat16", compile=way == "compiled")
    optim = AdamW(policy.model)

    def update(rows: list[np.ndarray]) -> float:
        samples = [Sample(row, trained(row, prompt_share)) for row in rows]
        stats = one_update(
            policy, optim, samples, "sft", lr=1e-6, max_tokens_per_microbatch=microbatch_tokens, max_grad_norm=1.0
        )  # fmt: skip
        return stats.loss

    return update


def matmul_seconds(rows: list[np.ndarray], prompt_share: float, microbatch_tokens: int, dtype: torch.dtype) -> float:
    """The bare matrix multiplications of one update of SmolLM2's shape, each measured at its own shape."""
    tokens = sum(len(row) for row in rows)
    targets = sum(int(trained(row, prompt_share).sum()) for row in rows)
    batches = math.ceil(tokens / microbatch_tokens)
    hidden, ffn, vocab, layers = 576, 1536, 49152, 30
    block = [(hidden, hidden), (hidden, 192), (hidden, 192), (hidden, hidden), (hidden, ffn), (hidden, ffn), (ffn, hidden)]

    def seconds(num: int, inner: int, outer: int) -> float:
        x, w, g = torch.randn(num, inner).to(dtype), torch.randn(outer, inner).to(dtype), torch.randn(num, outer).to(dtype)
        best = [math.inf] * 3
        for _ in range(4):
            for i, multiply in enumerate((lambda: x @ w.t(), lambda: g @ w, lambda: g.t() @ x)):
                start = time.process_time()
                multiply()
                best[i] = min(best[i], time.process_time() - start)
        return sum(best)

    layer = sum(seconds(tokens // batches, inner, outer) for inner, outer in block)
    head = seconds(1024, hidden, vocab) * targets / 1024
    return layer * layers * batches + head


def measure(args: argparse.Namespace) -> dict[str, float]:
    """One way, in this process."""
    rows = make_rows(args.rows, 49152)
    if args.measure == "padded":
        update = padded_update(args.folder, args.prompt_share)
    else:
        update = our_update(args.folder, args.measure, args.prompt_share, args.microbatch_tokens)
    start = time.perf_counter()
    # Several sizes: a compiled model makes its sizes dynamic with the second one.
    for count in (4, 6, 9):
        update([row[:64] for row in rows[:count]])
    ready = time.perf_counter() - start
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, cpu_start = time.perf_counter(), time.process_time()
    loss = update(rows)
    took, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tokens = sum(len(row) for row in rows)
    dtype = torch.float32 if args.measure in ("padded", "float32") else torch.bfloat16
    bare = matmul_seconds(rows, args.prompt_share, args.microbatch_tokens, dtype)
    return {
        "seconds": took,
        "cpu_s": cpu,
        "matmul_share": bare / cpu,
        "tokens_per_s": tokens / took,
        "peak_gb": peak / 2**20,
        "before_gb": before / 2**20,
        "loss": loss,
        "warm_up_s": ready,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help='"smollm2" or a folder; default: random weights of its shape')
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--prompt-share", type=float, default=0.0)
    parser.add_argument("--microbatch-tokens", type=int, default=2304)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if args.measure:
        print(json.dumps(measure(args)))
        return
    with tempfile.TemporaryDirectory() as made:
        if args.model:
            from cascade_rl.model.sources import resolve

            folder = str(resolve(args.model))
        else:
            folder = random_folder(made)
        report(args, folder)


def report(args: argparse.Namespace, folder: str) -> None:
    rows = make_rows(args.rows, 49152)
    tokens, padded = sum(len(row) for row in rows), 0
    for lo in range(0, len(rows), MICRO_ROWS):
        padded += MICRO_ROWS * max(len(row) for row in rows[lo : lo + MICRO_ROWS])
    targets = sum(int(trained(row, args.prompt_share).sum()) for row in rows)
    print(
        f"{args.rows} rows, {tokens} tokens ({padded} when padded), {targets} trained, {torch.get_num_threads()} threads",
        flush=True,
    )
    found: dict[str, list[dict[str, float]]] = {way: [] for way in args.ways}
    for _ in range(args.repeats):
        for way in args.ways:
            command = [sys.executable, str(Path(__file__).resolve()), "--measure", way, "--folder", folder]
            command += ["--rows", str(args.rows), "--prompt-share", str(args.prompt_share)]
            command += ["--microbatch-tokens", str(args.microbatch_tokens)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
            found[way].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"  {way:9}", {key: round(value, 3) for key, value in found[way][-1].items()}, flush=True)
    base = found.get("padded")
    print("| way | tokens/s | x padded | in cpu time | peak GB | of padded | share of the matmul rate |\n" + "|---" * 7 + "|")
    for way, runs in found.items():
        keys = ("tokens_per_s", "cpu_s", "peak_gb")
        speed, cpu, peak = (statistics.median(run[key] for run in runs) for key in keys)
        base_speed, base_cpu, base_peak = (statistics.median(run[key] for run in base or runs) for key in keys)
        share = statistics.median(run["matmul_share"] for run in runs)
        ratios = f"{speed / base_speed:.2f} | {base_cpu / cpu:.2f} | {peak:.2f} | {peak / base_peak:.0%}"
        print(f"| {way} | {speed:.0f} | {ratios} | {share:.0%} |", flush=True)


if __name__ == "__main__":
    main()
