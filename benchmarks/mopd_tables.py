"""The figures of `mopd.py` as tables on the terminal, one for each part and student."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table


def mean_recovery(domains: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Over domains (and seeds): the mean, and its error from those of the domains, which have prompts of their own."""
    known = [told for told in domains if told["recovered"] is not None]
    if not known:
        return math.nan, math.nan
    return fmean(told["recovered"] for told in known), math.sqrt(sum(told["stderr"] ** 2 for told in known)) / len(known)


def percent(mean: float, stderr: float) -> str:
    return f"{100 * mean:.1f} ± {100 * stderr:.1f}"


def show(told: Mapping[str, Any]) -> None:
    """A table for each part and student."""
    console = Console()
    for part, table in TABLES.items():
        students: dict[str, dict[str, Any]] = {}
        for name, seed in told.get(part, {}).items():
            student, _, number = name.rpartition("/")
            students.setdefault(student, {})[number] = seed
        for student, seeds in students.items():
            if student:
                console.print(f"student {student}", style="bold", markup=False)
            console.print(table(seeds))


def recovery_table(seeds: Mapping[str, Any]) -> Table:
    table = Table("seed", "domain", "teacher", "before", "after", "of teacher", "recovered", title="recovery, test, in %")
    everything = []
    for name, seed in seeds.items():
        regressed = [told for told in seed["domains"] if told["domain"] in seed["regressed"]]
        everything += regressed
        for told in regressed:
            means = (f"{100 * told[key]:.1f}" for key in ("before", "after", "of_teacher"))
            share = "–" if told["recovered"] is None else percent(told["recovered"], told["stderr"])
            table.add_row(name, told["domain"], seed["teachers"][told["domain"]]["stage"], *means, share)
        table.add_row(name, ", ".join(seed["fell"]) or "none", "fell significantly")
    table.add_section()
    table.add_row("mean", "", "", "", "", "", percent(*mean_recovery(everything)))
    return table


def efficiency_table(seeds: Mapping[str, Any]) -> Table:
    keys = ("steps", "rollouts", "tokens", "seconds")
    title = "to within one standard error of the teacher"
    table = Table("seed", "domain", "way", "start", "teacher", "best seen", *keys, title=title)
    for name, seed in seeds.items():
        for way, told in seed["ways"].items():
            reached, curve = told["reached"], told["curve"]
            last = curve[-1]
            costs = [f"{reached.get(key, 0):,.0f}" if reached else f"not in {last[key]:,.0f}" for key in keys]
            best = max(look["mean"] for look in curve)
            start, teacher = (percent(at["mean"], at["stderr"]) for at in (curve[0], seed["teacher"]))
            table.add_row(name, seed["domain"], way, start, teacher, f"{100 * best:.1f}", *costs)
    return table


def ablation_table(seeds: Mapping[str, Any]) -> Table:
    table = Table("variant", *seeds, "mean", title="mean recovery over the regressed domains, test, in %")
    for variant in next(iter(seeds.values())):
        of = [seed[variant]["domains"] for seed in seeds.values()]
        shares = [percent(*mean_recovery(domains)) for domains in of]
        table.add_row(variant, *shares, percent(*mean_recovery([told for domains in of for told in domains])))
    return table


TABLES = {"recovery": recovery_table, "efficiency": efficiency_table, "ablation": ablation_table}
