"""How well a model judges preference pairs as it is: agreement, by position, and the share of verdicts that cannot be read.

    python benchmarks/judge.py --pairs Dataset.json                                  # SmolLM2 in this process
    python benchmarks/judge.py --pairs Dataset.json --endpoint own                   # the same model behind our own HTTP server
    python benchmarks/judge.py --pairs Dataset.json --endpoint http://host/v1 --model NAME --key-env MY_KEY

Pairs: LLMBar's layout, TRL's or HelpSteer3's (docs/judge.md). Each is asked in both orders. A judge at chance agrees with half.
"""

import argparse
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean

from cascade_rl.grade.judge.config import JudgeConfig
from cascade_rl.grade.judge.labelled import grade_verdict
from cascade_rl.grade.judge.verdict import Label
from cascade_rl.model.render import RenderConfig
from cascade_rl.model.sources import resolve
from cascade_rl.protocols import Chat
from cascade_rl.sample.judges import open_judge
from cascade_rl.tasks.files import evenly
from cascade_rl.tasks.preference import Preference


@contextmanager
def judge(args: argparse.Namespace) -> Iterator[Chat]:
    config = {"temperature": 0.0, "top_p": 1.0, "max_new_tokens": args.max_new_tokens, "thinking": args.thinking}
    if args.endpoint != "own":
        remote = {"url": args.endpoint, "key_env": args.key_env, "concurrency": 16} if args.endpoint else {}
        yield open_judge(JudgeConfig(model=args.model, timeout_s=600.0, **config, **remote), {}, "judge", render=RenderConfig())
        return
    from cascade_rl.serve import Server, Service

    service = Service(resolve(args.model), thinking=args.thinking)
    with Server(service, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        told = JudgeConfig(model=args.model, url=server.url, timeout_s=3000.0, retries=0, concurrency=64, **config)
        yield open_judge(told, {}, "judge", render=RenderConfig())
        server.shutdown()
    service.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", required=True)
    parser.add_argument("--num", type=int, help="pairs, evenly spread (default: all)")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--endpoint", default="", help='a url, or "own": this project\'s server')
    parser.add_argument("--key-env", default="")
    parser.add_argument("--template", default="full")
    parser.add_argument("--thinking", action="store_true")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    args = parser.parse_args()
    task = Preference(path=args.pairs, split="test", template=args.template, reward="agreement")
    asked = task.prompts("test")
    prompts = [prompt for pair in evenly(range(len(asked) // 2), args.num) for prompt in asked[2 * pair : 2 * pair + 2]]
    begin = time.perf_counter()
    with judge(args) as chat:
        replies = chat.reply([prompt.messages for prompt in prompts], list(range(len(prompts))))
    seconds = time.perf_counter() - begin
    rewards = [
        None
        if reply.failure
        else grade_verdict(reply.text, Label(**prompt.reference), agreement=True, format_weight=10, ranking_weight=1)
        for reply, prompt in zip(replies, prompts, strict=True)
    ]
    parts = [reward.parts if reward else {"parsed": 0.0} for reward in rewards]
    print(f"{len(prompts)} questions ({len(prompts) // 2} pairs in both orders) in {seconds:.0f} s")
    for name in ("parsed", "agreement", "agreement_first", "agreement_second", "prefers_first"):
        values = [told[name] for told in parts if name in told]
        print(f"{name:18} {fmean(values):6.1%}  of {len(values)}" if values else f"{name:18}      –")
    orders = [(parts[i].get("prefers_first"), parts[i + 1].get("prefers_first")) for i in range(0, len(parts) - 1, 2)]
    both = [one != two for one, two in orders if one is not None and two is not None]
    print(f"{'same in both orders':18} {fmean(both):6.1%}  of {len(both)} pairs" if both else "no pair with two verdicts")
    silent = [reply.failure for reply in replies if reply.failure] + [r.why for r in rewards if r and not r.parts["parsed"]]
    if silent:
        print(f"without a verdict: {len(silent)}; the first: {silent[0][:160]}")


if __name__ == "__main__":
    main()
