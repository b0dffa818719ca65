"""How well a model judges preference pairs as it is: agreement, by position, and the share of verdicts that cannot be read.

    python benchmarks/judge.py --pairs Dataset.json                                  # SmolLM2 in this process
    python benchmarks/judge.py --pairs Dataset.json --endpoint own                   # the same model behind our own HTTP server
    python benchmarks/judge.py --pairs nano.judge --num 400 --model runs/nano/stages/03-judge-1a2b3c4d/checkpoint --thinking
    python benchmarks/judge.py --pairs STAGE/pairs.jsonl --mode point --template brief --thinking --model FOLDER
    python benchmarks/judge.py --pairs Dataset.json --endpoint http://host/v1 --model NAME --key-env MY_KEY

Pairs: a file in LLMBar's layout, TRL's or HelpSteer3's (docs/judge.md), each asked in both orders; or "nano.judge", the test pairs of the
nano world, each in one order drawn at random. A judge at chance agrees with half. With `--mode point` each answer is scored by itself, and
a pair is agreed with where the better answer has the higher score: there is no order in which they are shown. Rows that name their split
count where it is "test".
"""

import argparse
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean

from cascade_rl.grade.judge.config import JudgeConfig
from cascade_rl.grade.judge.labelled import grade_verdict
from cascade_rl.grade.judge.template import load_template, point_question
from cascade_rl.grade.judge.verdict import Label, parse_point
from cascade_rl.model.render import RenderConfig
from cascade_rl.model.sources import resolve
from cascade_rl.protocols import Chat
from cascade_rl.sample.judges import open_judge
from cascade_rl.tasks.files import evenly
from cascade_rl.tasks.nano.judge import JudgeTask
from cascade_rl.tasks.preference import Preference, read_pair


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


def score_each(args: argparse.Namespace) -> None:
    """Agreement of a judge that scores one answer at a time."""
    told = Preference(path=args.pairs, template=args.template)
    pairs = [read_pair(row) for row in told.pair_rows() if row.values.get("split", "test") == "test"]
    pairs = evenly([pair for pair in pairs if pair[3].preference], args.num)
    template = load_template(args.template, "point", "--template")
    asked = {(pair[0], answer): point_question(template, pair[0], answer) for pair in pairs for answer in pair[1:3]}
    with judge(args) as chat:
        replies = chat.reply(list(asked.values()), list(range(len(asked))))
    scores = {key: parse_point(reply.text) for key, reply in zip(asked, replies, strict=True)}
    found = [(scores[messages, first], scores[messages, second], label) for messages, first, second, label in pairs]
    read = [(one, two, label) for one, two, label in found if isinstance(one, int) and isinstance(two, int)]
    agree = [float((one - two) * label.preference > 0) for one, two, label in read]
    print(f"{len(pairs)} pairs, {len(asked)} answers")
    print(
        f"{'parsed':18} {sum(isinstance(score, int) for score in scores.values()) / len(scores):6.1%}  of {len(scores)} answers"
    )
    if agree:
        print(f"{'agreement':18} {fmean(agree):6.1%}  of {len(agree)} pairs")
        print(f"{'equal scores':18} {fmean(one == two for one, two, _ in read):6.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", required=True)
    parser.add_argument("--num", type=int, help="pairs, evenly spread (default: all)")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--endpoint", default="", help='a url, or "own": this project\'s server')
    parser.add_argument("--key-env", default="")
    parser.add_argument("--mode", choices=("pair", "point"), default="pair")
    parser.add_argument("--template", help="of a file's pairs (default: the one for small models)")
    parser.add_argument("--thinking", action="store_true")
    parser.add_argument("--max-new-tokens", type=int, default=100)
    args = parser.parse_args()
    args.template = args.template or ("examples" if args.mode == "pair" else "full")
    if args.mode == "point":
        return score_each(args)
    nano = args.pairs == "nano.judge"
    if nano:
        prompts = list(JudgeTask(num_test=args.num or 200).prompts("test"))
    else:
        asked = Preference(path=args.pairs, split="test", template=args.template).prompts("test")
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
    print(f"{len(prompts)} questions ({'each pair in one order' if nano else 'each pair in both orders'}) in {seconds:.0f} s")
    for name in ("parsed", "agreement", "agreement_first", "agreement_second", "prefers_first",
                 "agreement_unsure", "agreement_sure", "agreement_certain"):  # fmt: skip
        values = [told[name] for told in parts if name in told]
        print(f"{name:18} {fmean(values):6.1%}  of {len(values)}" if values else f"{name:18}      –")
    orders = [(parts[i].get("prefers_first"), parts[i + 1].get("prefers_first")) for i in range(0, len(parts) - 1, 2)]
    both = [one != two for one, two in orders if one is not None and two is not None]
    if both and not nano:
        print(f"{'same in both orders':18} {fmean(both):6.1%}  of {len(both)} pairs")
    silent = [reply.failure for reply in replies if reply.failure] + [r.why for r in rewards if r and not r.parts["parsed"]]
    if silent:
        print(f"without a verdict: {len(silent)}; the first: {silent[0][:160]}")


if __name__ == "__main__":
    main()
