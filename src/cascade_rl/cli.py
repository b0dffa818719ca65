"""The `cascade` command: thin verbs over the rooms below. Nothing heavy is imported before a verb needs it."""

import argparse
import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_rl import __version__
from cascade_rl.errors import CascadeError, Interrupted, RunError

if TYPE_CHECKING:
    from rich.table import Table

    from cascade_rl.plan import Planned
    from cascade_rl.recipe import Recipe


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb. Exit status: 0 done, 1 an error that the message explains, 2 wrong usage, 130 interrupted and saved."""
    args = _parser().parse_args(argv)
    try:
        args.verb(args)
        return 0
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        return 130
    except CascadeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped at once; the last saved state counts", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output left (cascade plan | head)
        sys.stderr.close()
        return 1
    except OSError as error:  # no permission, no space, a file where a folder should be
        what = f"cannot read or write {error.filename}: " if error.filename else ""
        print(f"error: {what}{error.strerror or error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cascade",
        description="One recipe, one command, a whole post-training cascade for language models.",
        epilog="Models that are fetched or made are kept in $CASCADE_CACHE, by default ~/.cache/cascade-rl.",
    )
    parser.add_argument("--version", action="version", version=f"cascade-rl {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    def verb(name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=text)
        added.set_defaults(verb=run)
        return added

    def recipe_options(added: argparse.ArgumentParser) -> None:
        added.add_argument("recipe", type=Path, metavar="RECIPE", help="a TOML file")
        added.add_argument(
            "--run", type=Path, metavar="FOLDER", help="where the run lives (default: runs/NAME-OF-THE-RECIPE-FILE)"
        )
        added.add_argument("--from", dest="start_from", metavar="STAGE", help="run this stage and later ones again")
        added.add_argument("--only", metavar="STAGE", help="stop after this stage; earlier ones must be done")
        set_option(added)

    def set_option(added: argparse.ArgumentParser) -> None:
        added.add_argument("--set", action="append", default=[], metavar="WHERE.KEY=VALUE", help="for example sft.steps=100")

    recipe_options(verb("run", _run, "Run a recipe: every stage that is not done, a matrix row after each, then the report."))
    recipe_options(verb("plan", _plan, "Show stages, effective values, and what would run or be skipped; start nothing."))

    ablate = verb("ablate", _ablate, "Run a recipe and variants of it, each with one thing changed, over seeds; compare them.")
    ablate.add_argument("recipe", type=Path, metavar="RECIPE", help="a TOML file")
    ablate.add_argument("variants", type=Path, metavar="VARIANTS", help="a TOML file of seeds and [variant.NAME] tables")
    ablate.add_argument("--out", type=Path, metavar="FOLDER", help="where the runs live (default: runs/ablate-NAME)")
    ablate.add_argument("--plan", action="store_true", help="show what each variant would run, skip or link; start nothing")
    set_option(ablate)

    evaluate = verb("eval", _eval, "Evaluate a model folder (or a run's last checkpoint) on tasks.")
    evaluate.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    evaluate.add_argument(
        "--tasks", required=True, metavar="NAME[,NAME...]", help="task names; settings by --set tasks.NAME.key=..."
    )
    evaluate.add_argument("--recipe", type=Path, help="take tasks, format and eval settings from this recipe")
    evaluate.add_argument("--split", choices=("dev", "test"), default="test")
    evaluate.add_argument("--out", type=Path, metavar="FOLDER", help="where rows and scores go (default: runs/eval-NAME)")
    set_option(evaluate)

    keep = verb(
        "filter", _filter, "Drop training prompts that a checkpoint solves every time; write the rest to a file for stages."
    )
    keep.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    keep.add_argument("--tasks", required=True, metavar="NAME[,NAME...]", help="task names; settings by --set tasks.NAME.key=...")
    keep.add_argument("--recipe", type=Path, help="take tasks, format and sampling (its eval settings) from this recipe")
    keep.add_argument("--samples", type=int, default=8, help="answers of each prompt (default: 8)")
    keep.add_argument("--num", type=int, help="try only so many prompts of each task (default: all)")
    keep.add_argument(
        "--keep-unsolved", type=float, default=1.0, metavar="SHARE", help="of prompts never solved (the paper, SWE: 0.1)"
    )
    keep.add_argument("--out", type=Path, default=Path("keep.json"), metavar="FILE", help="where the ids go (default: keep.json)")
    set_option(keep)

    mutate = verb(
        "mutate", _mutate, "Make small repositories with a fault each, from functions in MBPP's layout, for the task swe.made."
    )
    mutate.add_argument("functions", type=Path, metavar="MBPP.jsonl")
    mutate.add_argument("--out", type=Path, default=Path("repositories.jsonl"), metavar="FILE")
    mutate.add_argument("--num", type=int, help="use only so many functions (default: all)")
    mutate.add_argument("--functions-each", type=int, default=3, metavar="N", help="functions of a repository (default: 3)")
    mutate.add_argument("--seed", type=int, default=0)

    audit = verb("audit", _audit, "Feed tasks' graders gold answers and attacks; exit status 1 when a gold answer fails.")
    audit.add_argument("tasks", nargs="+", metavar="TASK", help="task names; settings by --set tasks.NAME.key=...")
    audit.add_argument("--recipe", type=Path, help="take tasks from this recipe")
    audit.add_argument("--split", choices=("train", "dev", "test"), default="train")
    audit.add_argument("--num", type=int, default=200, help="prompts of each task, evenly spread (default: 200)")
    set_option(audit)

    chat = verb("chat", _chat, "Talk to a checkpoint.")
    chat.add_argument("checkpoint", type=Path, metavar="RUN_OR_FOLDER")
    chat.add_argument("--no-thinking", action="store_true", help="answer without reasoning")
    chat.add_argument("--system", default="", help="a system message")
    chat.add_argument("--temperature", type=float, default=1.0)
    chat.add_argument("--max-new-tokens", type=int, default=512)
    chat.add_argument("--seed", type=int, default=0)

    serve = verb("serve", _serve, "Serve a checkpoint as OpenAI-compatible chat completions, for a judge behind an endpoint.")
    serve.add_argument("checkpoint", type=Path, metavar="RUN_OR_FOLDER_OR_SMOLLM2")
    serve.add_argument("--host", default="127.0.0.1", help="default: this machine alone; there is no key and no encryption")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--thinking", action="store_true", help="answers reason first")

    report = verb("report", _report, "Draw the report of a run again.")
    report.add_argument("run", type=Path, metavar="RUN")

    verb("doctor", _doctor, "Say which isolation this machine gives to programs that a model wrote, and what is missing.")

    fetch = verb("fetch", _fetch, "Fetch a model that needs preparing, once, into the cache.")
    fetch.add_argument("model", choices=("nano", "smollm2"))
    return parser


# --- verbs --------------------------------------------------------------------------------------------------------------------------


def _run(args: argparse.Namespace) -> None:
    from cascade_rl.pipeline import run_recipe
    from cascade_rl.plan import check_folder
    from cascade_rl.recipe import load_recipe
    from cascade_rl.run import RunDir

    recipe = load_recipe(args.recipe, args.set)
    check_folder(RunDir(_run_folder(args)))
    run, only = ["--run", str(args.run)] if args.run else [], ["--only", args.only] if args.only else []
    again = shlex.join(["cascade", "run", str(args.recipe), *run, *only, *_set_words(args.set)])
    run_recipe(recipe, _run_folder(args), start_from=args.start_from, only=args.only, how_to_go_on=again)


def _ablate(args: argparse.Namespace) -> None:
    from cascade_rl import ablate_table
    from cascade_rl.ablate import load_ablation, load_table, plan_ablation, run_ablation

    ablation = load_ablation(args.variants)
    table = load_table(args.recipe, args.set)
    out = args.out or Path("runs") / f"ablate-{args.variants.stem}"
    if args.plan:
        return ablate_table.show_plan(plan_ablation(table, ablation, out))
    again = ["cascade", "ablate", str(args.recipe), str(args.variants), "--out", str(out), *_set_words(args.set)]
    cells = []
    for cell in run_ablation(table, ablation, out, shlex.join(again)):
        cells.append(cell)
        ablate_table.write(out / "ablation.json", str(args.recipe), ablation.variants, cells)
    ablate_table.show(ablation.variants, cells)
    print(f"figures: {out / 'ablation.json'}")


def _set_words(overrides: Sequence[str]) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


def _run_folder(args: argparse.Namespace) -> Path:
    return args.run or Path("runs") / args.recipe.stem


def _plan(args: argparse.Namespace) -> None:
    from rich.console import Console

    from cascade_rl.plan import check_folder, check_name, make_plan, teaches_itself, verdicts, with_pairs
    from cascade_rl.recipe import load_recipe, to_json
    from cascade_rl.run import RunDir
    from cascade_rl.shortfall import shortfalls

    recipe = load_recipe(args.recipe, args.set)
    check_folder(run := RunDir(_run_folder(args)))
    check_name(recipe, run)
    plan = make_plan(recipe, _run_folder(args), args.start_from, args.only)
    console = Console(highlight=False)
    console.print(f"[bold]{recipe.name}[/bold]  model {recipe.model.source}, seed {recipe.seed}, run folder {_run_folder(args)}")
    for item in plan:
        console.print(f"\n[bold]{item.index}. {item.stage.name}[/bold]  {item.fingerprint}  {item.in_words}")
        console.print(f"   {item.stage.arithmetic()}")
        if teaches_itself(recipe, item.stage):
            console.print("   [bold]its student is named as the teacher of every domain: there is nothing to learn from[/bold]")
        for key, value in to_json(item.stage).items():
            console.print(f"   {key} = {value}", markup=False)
    told = to_json(recipe)
    for section in ("model", "render", "eval"):
        console.print(f"\n[bold]{section}[/bold]  ", end="")
        console.print(_settings(told[section]), markup=False)
    for name, settings in told["tasks"].items():
        console.print(f"\n[bold]task[/bold] {name}  ", end="")
        console.print(_settings(settings), markup=False)
    console.print()
    console.print(_budget_table(plan))
    for item in plan:
        num, tokens = verdicts(recipe, item.stage)
        if num:
            told = f"{num:,} verdicts of its judges, of at most {tokens:,} tokens together"
            console.print(f"{item.stage.name}: and {told}", markup=False, highlight=False)
    if lacks := shortfalls(with_pairs(recipe, plan)):
        console.print("[bold]What cannot be run as it stands[/bold]")
        for lack in lacks:
            console.print(f"- {lack}", markup=False)


def _budget_table(plan: "Sequence[Planned]") -> "Table":
    """Prompts, rollouts, tokens and steps of each stage, in the order of the recipe."""
    from rich.table import Table

    from cascade_rl.plan import budget

    table = Table(title="at most, refills and evaluations apart", title_justify="left")
    table.add_column("stage", style="bold")
    table.add_column("kind")
    for name in ("steps", "prompts", "rollouts", "tokens"):
        table.add_column(name, justify="right")
    for item in plan:
        told = budget(item.stage)
        figures = (told.steps, told.prompts, told.rollouts, told.tokens)
        table.add_row(item.stage.name, type(item.stage).__name__.lower(), *(f"{n:,}" if n else "–" for n in figures))
    return table


def _settings(told: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in told.items())


def _eval(args: argparse.Namespace) -> None:
    from cascade_rl.one_checkpoint import check_used, evaluate_folder

    names, recipe = _names_and_recipe(args, "eval")
    check_used(args.set, args.split)
    evaluate_folder(recipe, args.checkpoint, names, args.split, args.out)


def _filter(args: argparse.Namespace) -> None:
    from cascade_rl.errors import RecipeError

    for option, value in (("--samples", args.samples), ("--num", args.num)):
        if value is not None and value < 1:
            raise RecipeError(f"{option} {value}: must be at least 1")
    if not 0 <= args.keep_unsolved <= 1:
        raise RecipeError(f"--keep-unsolved {args.keep_unsolved}: is a share, 0 to 1")
    from cascade_rl.one_checkpoint import filter_folder

    names, recipe = _names_and_recipe(args, "filter")
    filter_folder(recipe, args.checkpoint, names, args.out, samples=args.samples, num=args.num, keep_unsolved=args.keep_unsolved)


def _mutate(args: argparse.Namespace) -> None:
    from cascade_rl.errors import RecipeError

    for option, value in (("--num", args.num), ("--functions-each", args.functions_each)):
        if value is not None and value < 1:
            raise RecipeError(f"{option} {value}: must be at least 1")
    import asyncio

    from cascade_rl.recipe_checks import check_out
    from cascade_rl.run import write_atomic
    from cascade_rl.sandbox.process import shared_pool
    from cascade_rl.tasks.mbpp import MBPP
    from cascade_rl.tasks.swe.make import as_lines, is_made_file, make_rows, modules_of

    check_out(args.out, is_made_file, "cascade mutate")
    task = MBPP(path=str(args.functions), split="train")
    prompts = [prompt for split in task.splits() for prompt in task.prompts(split)]
    modules = modules_of(prompts)[: args.num]
    rows, num_without = asyncio.run(make_rows(modules, args.functions_each, args.seed, shared_pool()))
    write_atomic(args.out, "".join(as_lines(rows)))
    print(
        f"{args.out}: {len(rows):,} repositories; {num_without:,} of {len(modules):,} functions had no fault that their tests see"
    )


def _names_and_recipe(args: argparse.Namespace, verb: str) -> "tuple[list[str], Recipe]":
    """What --tasks names, and the recipe that has it: a file's, or one of nothing but overrides."""
    from cascade_rl.errors import RecipeError
    from cascade_rl.recipe import load_recipe, parse_overrides

    names = list(dict.fromkeys(name.strip() for name in args.tasks.split(",") if name.strip()))
    if not names:
        raise RecipeError(f'--tasks "{args.tasks}" names no task; expected one or more, separated by commas')
    return names, load_recipe(args.recipe, args.set) if args.recipe else parse_overrides(
        verb, str(args.checkpoint), names, args.set
    )


def _audit(args: argparse.Namespace) -> None:
    from cascade_rl.errors import GraderError, RecipeError
    from cascade_rl.eval.audit import audit_task, print_audit
    from cascade_rl.recipe import load_recipe, parse_overrides
    from cascade_rl.recipe_checks import check_asked
    from cascade_rl.tasks import prompts_of

    if args.num < 1:
        raise RecipeError(f"--num {args.num}: must be at least 1")
    recipe = load_recipe(args.recipe, args.set) if args.recipe else parse_overrides("audit", "nano", args.tasks, args.set)
    check_asked(recipe, args.tasks, "audit")
    faults = []
    for name in args.tasks:
        task = recipe.tasks[name]
        report = audit_task(task, prompts_of(task, args.split), args.num)
        for note in getattr(task, "notes", tuple)():
            print(f'task "{name}": {note}')
        if not report.num_prompts:
            faults.append(
                f'task "{name}": has no prompts in split "{args.split}", so nothing was audited; choose another --split'
            )
            continue
        print_audit(report)
        faults += [report.fault] if report.fault else []
    if faults:
        raise GraderError("\n".join(faults))


def _chat(args: argparse.Namespace) -> None:
    from cascade_rl.errors import RecipeError
    from cascade_rl.records import SamplingParams

    if not (math.isfinite(args.temperature) and args.temperature >= 0):
        raise RecipeError(f"--temperature {args.temperature}: must be 0 (greedy) or more, and finite")
    if args.max_new_tokens < 1:
        raise RecipeError(f"--max-new-tokens {args.max_new_tokens}: must be at least 1")
    from cascade_rl.chat import talk  # torch comes with it: after the checks
    from cascade_rl.one_checkpoint import find_checkpoint

    params = SamplingParams(temperature=args.temperature, max_new_tokens=args.max_new_tokens)
    talk(find_checkpoint(args.checkpoint), params, thinking=not args.no_thinking, system=args.system, seed=args.seed)


def _serve(args: argparse.Namespace) -> None:
    from cascade_rl.errors import RecipeError

    if not 0 <= args.port < 65536:
        raise RecipeError(f"--port {args.port}: must be 0 (any free one) to 65535")
    from cascade_rl.model.sources import resolve
    from cascade_rl.one_checkpoint import find_checkpoint
    from cascade_rl.serve import serve

    folder = resolve("smollm2") if str(args.checkpoint) == "smollm2" else find_checkpoint(args.checkpoint)
    serve(folder, args.host, args.port, thinking=args.thinking)


def _report(args: argparse.Namespace) -> None:
    from cascade_rl.observe.report import build
    from cascade_rl.observe.report_run import read_run
    from cascade_rl.run import RunDir

    run = RunDir(args.run)
    if not (run.recipe.exists() or run.matrix.exists()):
        raise RunError(f"report: {args.run} holds no run; give the folder of `cascade run --run` or `cascade eval --out`")
    for problem in read_run(args.run).problems:
        print(f"not in the report: {problem}", file=sys.stderr)
    print(f"report: {build(args.run)}")


def _doctor(args: argparse.Namespace) -> None:
    from cascade_rl.errors import SandboxError
    from cascade_rl.sandbox.doctor import examine

    good = True
    for finding in examine():
        good = finding.good
        print(f"{'ok     ' if finding.good else 'MISSING'}  {finding.name}: {finding.told}")
        if finding.way_out:
            print(f"         way out: {finding.way_out}")
    if not good:  # the last finding is a run, or what keeps one from being tried
        raise SandboxError("this machine does not isolate model-written programs; code tasks will not run")


def _fetch(args: argparse.Namespace) -> None:
    from cascade_rl.model.sources import resolve
    from cascade_rl.tasks.nano import corpus

    print(f"{args.model}: {resolve(args.model, corpus)}")


if __name__ == "__main__":
    sys.exit(main())
