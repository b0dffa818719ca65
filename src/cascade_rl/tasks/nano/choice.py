"""Multiple choice from small computed science questions; the numbers are small, the formula has to be known."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from cascade_rl.errors import RecipeError
from cascade_rl.grade.choices import grade_choice
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout
from cascade_rl.tasks.drawn import Draft, DrawnTask

LETTERS = "ABCD"


@dataclass(frozen=True, slots=True)
class Formula:
    """A kind of question: `compute(a, b)` is the answer, `say` the way to it; `make` draws a and b (b is 0 where unused)."""

    kind: str
    ask: tuple[str, ...]
    say: str
    compute: Callable[[int, int], int]
    make: Callable[[random.Random, int], tuple[int, int]]


def _factors(rng: random.Random, largest: int) -> tuple[int, int]:
    return rng.randint(2, largest), rng.randint(2, largest)


def _divisible(rng: random.Random, largest: int) -> tuple[int, int]:
    quotient, divisor = _factors(rng, largest)
    return quotient * divisor, divisor


def _bigger_first(rng: random.Random, largest: int) -> tuple[int, int]:
    small, more = _factors(rng, largest)
    return small + more, small


def _one(rng: random.Random, largest: int) -> tuple[int, int]:
    return rng.randint(1, largest), 0


def _halvings(rng: random.Random, largest: int) -> tuple[int, int]:
    times = rng.randint(1, 3)
    return rng.randint(1, largest) * 2**times, times


FORMULAS = (
    Formula(
        "speed",
        ("A car goes {a} m in {b} s. What is its speed in m/s?", "Speed in m/s for {a} m in {b} s?"),
        "v=s/t={a}/{b}={r}",
        lambda a, b: a // b,
        _divisible,
    ),
    Formula(
        "distance",
        ("A car goes {a} m/s for {b} s. How many m is that?", "Distance in m at {a} m/s in {b} s?"),
        "s=v*t={a}*{b}={r}",
        lambda a, b: a * b,
        _factors,
    ),
    Formula(
        "density",
        ("A stone of {a} g has {b} ml. What is its density in g/ml?", "Density in g/ml of {a} g in {b} ml?"),
        "d=m/V={a}/{b}={r}",
        lambda a, b: a // b,
        _divisible,
    ),
    Formula(
        "mass",
        ("The density is {a} g/ml. What is the mass of {b} ml in g?", "Mass in g of {b} ml at {a} g/ml?"),
        "m=d*V={a}*{b}={r}",
        lambda a, b: a * b,
        _factors,
    ),
    Formula(
        "voltage",
        ("A current of {a} A flows in {b} ohm. What is the voltage in V?", "Voltage in V for {a} A in {b} ohm?"),
        "U=R*I={a}*{b}={r}",
        lambda a, b: a * b,
        _factors,
    ),
    Formula(
        "current",
        ("A voltage of {a} V is on {b} ohm. What is the current in A?", "Current in A for {a} V on {b} ohm?"),
        "I=U/R={a}/{b}={r}",
        lambda a, b: a // b,
        _divisible,
    ),
    Formula(
        "force",
        ("A mass of {a} kg speeds up by {b} m/s2. What is the force in N?", "Force in N for {a} kg and {b} m/s2?"),
        "F=m*a={a}*{b}={r}",
        lambda a, b: a * b,
        _factors,
    ),
    Formula(
        "power",
        ("A current of {a} A flows at {b} V. What is the power in W?", "Power in W for {a} A at {b} V?"),
        "P=U*I={a}*{b}={r}",
        lambda a, b: a * b,
        _factors,
    ),
    Formula(
        "charge",
        ("A current of {a} A flows for {b} s. What is the charge in C?", "Charge in C of {a} A in {b} s?"),
        "Q=I*t={a}*{b}={r}",
        lambda a, b: a * b,
        _factors,
    ),
    Formula(
        "work",
        ("A force of {a} N pulls for {b} m. What is the work in J?", "Work in J of {a} N over {b} m?"),
        "W=F*s={a}*{b}={r}",
        lambda a, b: a * b,
        _factors,
    ),
    Formula(
        "momentum",
        ("A ball of {a} kg flies at {b} m/s. What is its momentum in Ns?", "Momentum in Ns of {a} kg at {b} m/s?"),
        "p=m*v={a}*{b}={r}",
        lambda a, b: a * b,
        _factors,
    ),
    Formula(
        "pressure",
        ("A force of {a} N is on {b} m2. What is the pressure in Pa?", "Pressure in Pa of {a} N on {b} m2?"),
        "p=F/A={a}/{b}={r}",
        lambda a, b: a // b,
        _divisible,
    ),
    Formula(
        "frequency",
        ("A bell swings {a} times in {b} s. What is its frequency in Hz?", "Frequency in Hz of {a} swings in {b} s?"),
        "f=n/t={a}/{b}={r}",
        lambda a, b: a // b,
        _divisible,
    ),
    Formula(
        "charge number",
        ("An ion has {a} protons and {b} electrons. What is its charge?", "Charge of {a} protons with {b} electrons?"),
        "q=Z-e={a}-{b}={r}",
        lambda a, b: a - b,
        _bigger_first,
    ),
    Formula(
        "mass number",
        ("An atom has {a} protons and {b} neutrons. What is its mass number?", "Mass number of {a} protons, {b} neutrons?"),
        "A=Z+N={a}+{b}={r}",
        lambda a, b: a + b,
        _factors,
    ),
    Formula(
        "series",
        ("Two parts of {a} ohm and {b} ohm are in series. What is the sum in ohm?", "Total ohm of {a} and {b} in series?"),
        "R={a}+{b}={r}",
        lambda a, b: a + b,
        _factors,
    ),
    Formula(
        "neutrons",
        ("An atom has mass number {a} and {b} protons. How many neutrons?", "Neutrons at mass number {a} with {b} protons?"),
        "N=A-Z={a}-{b}={r}",
        lambda a, b: a - b,
        _bigger_first,
    ),
    Formula(
        "orbitals",
        ("How many orbitals does shell {a} have?", "Number of orbitals in shell {a}?"),
        "n*n={a}*{a}={r}",
        lambda a, b: a * a,
        _one,
    ),
    Formula(
        "subshell",
        ("How many orbitals does a subshell with l={a} have?", "Number of orbitals for l={a}?"),
        "2*{a}+1={r}",
        lambda a, b: 2 * a + 1,
        _one,
    ),
    Formula(
        "half-life",
        ("There are {a} g. How many g are left after {b} half-lives?", "What is left of {a} g after {b} half-lives?"),
        "{halves}",
        lambda a, b: a >> b,
        _halvings,
    ),
)


@dataclass(frozen=True, kw_only=True)
class ChoiceTask(DrawnTask):
    """`"Speed in m/s for 12 m in 3 s? 3 A, 4 B, 5 C"` asks for `Answer: B`.

    max_number: largest factor. num_options: how many answers to choose from (2 to 4).
    """

    max_number: int = 6
    num_options: int = 3

    name: str = "nano.choice"
    domain: str = "choice"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.num_options <= 4:
            raise RecipeError(f'task "{self.name}": num_options {self.num_options} must be 2 to 4')

    def draw(self, rng: random.Random) -> Draft:
        formula = rng.choice(FORMULAS)
        a, b = formula.make(rng, self.max_number)
        result = formula.compute(a, b)
        options = _options(rng, result, {a, b, a + b, a * b, abs(a - b)}, self.num_options)
        right = LETTERS[options.index(result)]
        listed = ", ".join(f"{option} {letter}" for letter, option in zip(LETTERS, options, strict=False))
        way = formula.say.format(a=a, b=b, r=result, halves=_say_halves(a, b))
        # The letter follows the result as it does in the list: to a small model one step of copying.
        thinking = f"{way} {right}."
        gold = Message("assistant", f"Answer: {right}", thinking=thinking if self.thinking else None)
        question = f"{rng.choice(formula.ask).format(a=a, b=b)}\n{listed}"
        return Draft([formula.kind, a, b], question, (gold,), right, self.thinking)

    def judge(self, rollout: Rollout, answer: str, tools: Tools | None) -> Reward:
        return grade_choice(answer, rollout.prompt.reference, LETTERS[: self.num_options])


def _options(rng: random.Random, result: int, tempting: set[int], num: int) -> list[int]:
    """The result among wrong values: one that a wrong formula gives, the others near it.

    None ends in the result's last digit: a small model finds an option by the digit before its letter.
    """

    def can_stand(value: int) -> bool:
        return value >= 0 and value % 10 != result % 10

    wrong = rng.sample(sorted(filter(can_stand, tempting)) or [result + 1], 1)
    others = sorted(value for value in range(result - 3, result + 4) if can_stand(value) and value not in wrong)
    options = [result, *wrong, *rng.sample(others, num - 2)]
    rng.shuffle(options)
    return options


def _say_halves(a: int, times: int) -> str:
    return ". ".join(f"{a >> k}/2={a >> (k + 1)}" for k in range(times))
