"""How fast rollouts are: the embedded sampler, transformers' generate and vLLM's CPU build, side by side in one run.

    python benchmarks/rollout.py                                        # SmolLM2-135M, bf16, 3 rounds
    python benchmarks/rollout.py --vllm-python ~/vllm/bin/python        # vLLM from an environment of its own
    python benchmarks/rollout.py --model FOLDER --dtype float32 --ways ours generate

16 prompts of about 60 tokens x 8 answers of at most 128 tokens, temperature 1, ending where the model ends them (ragged). Each way
is a process of its own that loads, warms up, and then answers in turns with the others, so that what else the machine does hits all
of them; ratios are medians over rounds. A useful token is one that belongs to an answer (padding behind its end does not count).
Peak memory is the largest resident size of a way's processes, added up. Log-probs of our answers are compared with transformers' forward in
float32 and in the benchmark's own type.
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

WAYS = ("ours", "generate", "vllm")
NUM_PROMPTS, GROUP_SIZE, MAX_NEW = 16, 8, 128
GAP_PROMPTS = 4  # how many prompts' answers the log-prob gap is measured on

SHOPS = ("bakery", "library", "garden centre", "bicycle shop", "museum", "ferry company", "school kitchen", "cinema")
QUESTIONS = (
    "A {} sells {} tickets on Monday and twice as many on Tuesday. Is that more than fifty in all? Answer in one short sentence.",
    "Write a long and friendly letter to the customers of a {} which moves {} metres down the street next week.",
)

Ask = Callable[[], tuple[list[list[int]], list[list[float]]]]  # -> the ids of each answer and, from ours, their log-probs


def make_texts() -> list[str]:
    """Sixteen questions."""
    return [QUESTIONS[i % 2].format(SHOPS[i // 2], 12 + 7 * i) for i in range(NUM_PROMPTS)]


def make_contexts(folder: str) -> list[list[int]]:
    """The questions as chat prompts, token ids."""
    from cascade_rl.model.sources import load_tokenizer

    tokenizer, texts = load_tokenizer(folder), make_texts()
    if tokenizer.chat_template is None:
        return [tokenizer.encode(text) for text in texts]
    chats = [[{"role": "user", "content": text}] for text in texts]
    return [tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in chats]


# --- the ways -----------------------------------------------------------------------------------------------------------------


def ours(job: dict) -> Callable[[int], Ask]:
    from cascade_rl.records import SamplingParams
    from cascade_rl.sample.local import LocalSampler

    sampler = LocalSampler(job["folder"], dtype=job["dtype"])

    def prepare(max_new: int) -> Ask:
        params = SamplingParams(max_new_tokens=max_new, stop_ids=tuple(job["stop_ids"]))

        def ask() -> tuple[list[list[int]], list[list[float]]]:
            turns = [turn for group in sampler.sample(job["contexts"], GROUP_SIZE, params, range(NUM_PROMPTS)) for turn in group]
            return [list(turn.answer_ids) for turn in turns], [list(turn.logps) for turn in turns]

        return ask

    return prepare


def generate(job: dict) -> Callable[[int], Ask]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(job["folder"], dtype=job["dtype"]).eval()
    longest, pad, stops = max(map(len, job["contexts"])), job["stop_ids"][0], set(job["stop_ids"])
    rows = [[pad] * (longest - len(ids)) + ids for ids in job["contexts"]]
    masks = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in job["contexts"]]
    settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "num_return_sequences": GROUP_SIZE}

    def until_stop(ids: list[int]) -> list[int]:
        return ids[: next((place + 1 for place, token in enumerate(ids) if token in stops), len(ids))]

    def prepare(max_new: int) -> Ask:
        @torch.inference_mode()
        def ask() -> tuple[list[list[int]], list[list[float]]]:
            torch.manual_seed(0)
            out = model.generate(
                input_ids=torch.tensor(rows), attention_mask=torch.tensor(masks), max_new_tokens=max_new, pad_token_id=pad,
                eos_token_id=job["stop_ids"], **settings,
            )  # fmt: skip
            return [until_stop(ids) for ids in out[:, longest:].tolist()], []

        return ask

    return prepare


def vllm(job: dict) -> Callable[[int], Ask]:
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=job["folder"], dtype=job["dtype"], max_num_seqs=NUM_PROMPTS * GROUP_SIZE, max_model_len=512, seed=0,
        enforce_eager=job["vllm_eager"], enable_prefix_caching=True,
        gpu_memory_utilization=0.3,  # of the machine's memory, on a CPU; its default of 0.92 asks for more than is free
    )  # fmt: skip
    prompts = [{"prompt_token_ids": ids} for ids in job["contexts"]]

    def prepare(max_new: int) -> Ask:
        params = SamplingParams(n=GROUP_SIZE, temperature=1.0, max_tokens=max_new, stop_token_ids=job["stop_ids"], logprobs=0)

        def ask() -> tuple[list[list[int]], list[list[float]]]:
            return [
                list(o.token_ids) for request in engine.generate(prompts, params, use_tqdm=False) for o in request.outputs
            ], []

        return ask

    return prepare


def serve(way: str, job: dict) -> None:
    """A way's process: loads, warms up, then answers "go" lines on stdin with one JSON line each."""
    replies = os.fdopen(os.dup(1), "w")  # what libraries print must not mix with them
    os.dup2(2, 1)
    start = time.perf_counter()
    prepare = {"ours": ours, "generate": generate, "vllm": vllm}[way](job)
    prepare(8)()
    ask = prepare(MAX_NEW)
    print(json.dumps({"start_s": time.perf_counter() - start}), file=replies, flush=True)
    for _ in sys.stdin:
        start, cpu_start = time.perf_counter(), cpu_s()
        ids, logps = ask()
        reply = {"wall_s": time.perf_counter() - start, "cpu_s": cpu_s() - cpu_start, "ids": ids, "logps": logps}
        print(json.dumps(reply | {"peak_mb": peak_mb()}), file=replies, flush=True)


def family() -> list[Path]:
    """/proc folders of this process and its living descendants (vLLM computes in one)."""
    found, seen = [Path("/proc/self")], {os.getpid()}
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda f: int(f.name)):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue  # it ended meanwhile
        if parent in seen:
            seen.add(int(folder.name))
            found.append(folder)
    return found


def cpu_s() -> float:
    """Processor time of the family so far."""
    ticks = [(folder / "stat").read_text().rpartition(")")[2].split()[11:13] for folder in family()]
    return sum(int(user) + int(system) for user, system in ticks) / os.sysconf("SC_CLK_TCK")


def peak_mb() -> float:
    """The sum of the peaks of the family's resident sizes."""
    lines = [line for folder in family() for line in (folder / "status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


# --- the comparison -----------------------------------------------------------------------------------------------------------


def gaps(job: dict, ids: list[list[int]], logps: list[list[float]], dtype: str) -> dict[str, float]:
    """|sampler - transformers| over the answers to the first prompts, and the k3 estimate of KL(sampler || transformers)."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(job["folder"], dtype=dtype).eval()
    differences = []
    with torch.inference_mode():
        for number in range(GAP_PROMPTS * GROUP_SIZE):
            context, answer = job["contexts"][number // GROUP_SIZE], ids[number]
            logits = model(torch.tensor([context + answer[:-1]]), logits_to_keep=len(answer)).logits[0]
            want = logits.float().log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
            differences.append(want - torch.tensor(logps[number]))
    gap = torch.cat(differences)
    return {"mean": gap.abs().mean().item(), "max": gap.abs().max().item(), "k3": (gap.exp() - 1 - gap).mean().item()}


class Child:
    """A way's process, and what it answered."""

    def __init__(self, way: str, python: str, job_file: str) -> None:
        self.way, self.results = way, []
        command = [python, __file__, "--serve", way, "--job", job_file]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.errors = self.process.stderr
        self.start_s = self.read()["start_s"]

    def read(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f'the way "{self.way}" ended early:\n{self.process.communicate()[1][-2000:]}')
        return json.loads(line)

    def go(self) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.results.append(self.read())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2", help='a model folder, or "smollm2"')
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm-python", help="the Python of an environment with vLLM's CPU build")
    parser.add_argument("--vllm-eager", action="store_true", help="vLLM without its compiler: starts sooner, runs slower")
    parser.add_argument("--show", action="store_true", help="print an answer to each prompt")
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--serve", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, json.loads(Path(args.job).read_text()))
        return

    from cascade_rl.model.sources import load_tokenizer, resolve

    folder = str(resolve(args.model))
    tokenizer = load_tokenizer(folder)
    job = {
        "folder": folder, "dtype": args.dtype, "contexts": make_contexts(folder), "stop_ids": [tokenizer.eos_token_id],
        "vllm_eager": args.vllm_eager,
    }  # fmt: skip
    ways = [way for way in args.ways if way != "vllm" or args.vllm_python]
    if "vllm" in args.ways and not args.vllm_python:
        print("vllm: skipped; name the Python of its environment with --vllm-python")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job, file)
        file.flush()
        children = [Child(way, args.vllm_python if way == "vllm" else sys.executable, file.name) for way in ways]
        for _ in range(args.rounds):
            for child in children:
                child.go()
        for child in children:
            child.close()

    figures: dict[str, object] = {"prompt_tokens": sum(map(len, job["contexts"])) / NUM_PROMPTS, "dtype": args.dtype}
    print(f"{'way':10}{'useful tok/s':>14}{'tok/cpu s':>11}{'tokens':>8}{'s':>7}{'peak MB':>9}{'start s':>9}{'ours is':>9}")
    mine = [rate(result) for child in children if child.way == "ours" for result in child.results]
    for child in children:
        rates = [rate(result) for result in child.results]
        ratio = statistics.median(a / b for a, b in zip(mine, rates, strict=True)) if mine else float("nan")
        row = {
            "tokens_per_s": statistics.median(rates),
            "tokens_per_cpu_s": statistics.median(count(result) / result["cpu_s"] for result in child.results),
            "tokens": count(child.results[-1]),
            "wall_s": statistics.median(result["wall_s"] for result in child.results),
            "peak_mb": max(result["peak_mb"] for result in child.results),
            "start_s": child.start_s,
            "ours_over_it": ratio,
            "all_tokens_per_s": rates,
        }
        figures[child.way] = row
        print(
            f"{child.way:10}{row['tokens_per_s']:14.0f}{row['tokens_per_cpu_s']:11.0f}{row['tokens']:8}{row['wall_s']:7.1f}"
            f"{row['peak_mb']:9.0f}{row['start_s']:9.1f}{ratio:8.2f}x"
        )
    if mine:
        last = next(child for child in children if child.way == "ours").results[-1]
        for number, context in enumerate(job["contexts"]) if args.show else ():
            print(repr(tokenizer.decode(context + last["ids"][number * GROUP_SIZE])))
        for dtype in dict.fromkeys(("float32", args.dtype)):
            figures[f"gap_to_{dtype}"] = gap = gaps(job, last["ids"], last["logps"], dtype)
            print(f"log-probs against transformers in {dtype}: mean {gap['mean']:.4f}, max {gap['max']:.3f}, k3 {gap['k3']:.5f}")
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


def count(result: dict) -> int:
    return sum(map(len, result["ids"]))


def rate(result: dict) -> float:
    return count(result) / result["wall_s"]


if __name__ == "__main__":
    main()
