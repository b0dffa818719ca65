"""Are two LaTeX answers equal as mathematics? Runs as a child process (see pool.py) and imports nothing of the package.

math-verify parses; the comparison is ours, since its own has known wrong verdicts: it rounds to six places (1/2004! equals
1/2006!), compares intervals with inequalities in one direction only, and takes any two equations without solutions for equal.

Protocol, one line each: {"gold": str, "pred": str} -> {"equal": true|false|null, "why": str}; null: the comparison failed.
"""

import json
import logging
import resource
import signal
import sys
from typing import Any

CPU_LIMIT_S = 2.0  # of the child's own processor time: a loaded machine does not turn a verdict into a time-out
MEMORY_LIMIT_BYTES = 2 << 30
PRECISION = 60  # decimal digits for numbers that have no exact form


def equal(gold: str, pred: str) -> tuple[bool | None, str]:
    """Whether two answers (normalised LaTeX, without delimiters) are equal, and why; None where the comparison itself failed."""
    ours = _parse(gold)
    if ours is None:
        return False, "the gold answer is text, and the answer is another"
    theirs = _parse(pred)
    if theirs is None:
        return False, "not readable as mathematics"
    try:
        return bool(_same(ours, theirs)), "compared as mathematics"
    except RecursionError:
        return False, "nested too deep to be an answer"
    except (ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError) as error:
        return None, f"comparison failed with {type(error).__name__}"


def _parse(answer: str) -> Any:
    from math_verify import LatexExtractionConfig, parse

    try:
        found = parse(f"${answer}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=0)
    except (RecursionError, MemoryError):
        return None
    return found[0] if found else None


def _same(gold: Any, pred: Any) -> bool:
    from latex2sympy2_extended.sets import FiniteSet as ListedSet
    from math_verify.grader import is_assignment_relation, is_equation, is_relation, take_first_relation, take_last_relation
    from sympy import Eq, FiniteSet, Interval, MatrixBase, Set, Tuple

    named_sets = [isinstance(side, Eq) and isinstance(side.rhs, Set) for side in (gold, pred)]
    if any(named_sets) and not all(named_sets):  # math-verify reads "x is in the set" as "x = set"
        gold, pred = (gold.rhs, pred) if named_sets[0] else (gold, pred.rhs)
    if is_relation(gold) and is_relation(pred):
        assignments = is_assignment_relation(gold) and is_assignment_relation(pred)
        if assignments and take_first_relation(gold).lhs == take_first_relation(pred).lhs:
            return _same(take_last_relation(gold).rhs, take_last_relation(pred).rhs)
        return _same_relation(gold, pred)
    if is_assignment_relation(gold):  # x = 5 is the answer 5; but an equation that is not solved is not its right-hand side
        return _same(take_last_relation(gold).rhs, pred)
    if is_assignment_relation(pred):
        return _same(gold, take_last_relation(pred).rhs)
    if is_relation(gold) and _either(Set, pred) and not is_equation(gold):
        gold = gold.as_set()
    elif is_relation(pred) and _either(Set, gold) and not is_equation(pred):
        pred = pred.as_set()
    if is_relation(gold) or is_relation(pred):
        return False

    if _either(MatrixBase, gold, pred):
        return _both(MatrixBase, gold, pred) and gold.shape == pred.shape and _all_same(gold.flat(), pred.flat())
    if _both(Interval, gold, pred):
        ends = bool(gold.left_open) == bool(pred.left_open) and bool(gold.right_open) == bool(pred.right_open)
        return ends and _same(gold.start, pred.start) and _same(gold.end, pred.end)
    if _both(Tuple, gold, pred):
        return len(gold) == len(pred) and _all_same(gold.args, pred.args)
    if _either(FiniteSet, gold, pred) or _either(ListedSet, gold, pred):
        return _same_elements(_elements(gold, (FiniteSet, ListedSet)), _elements(pred, (FiniteSet, ListedSet)))
    if _either(Set, gold, pred):
        return _both(Set, gold, pred) and (gold == pred or gold.symmetric_difference(pred).is_empty is True)
    return not _either(Tuple, gold, pred) and _same_expression(gold, pred)


def _either(kind: type, *values: Any) -> bool:
    return any(isinstance(value, kind) for value in values)


def _both(kind: type, *values: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def _elements(value: Any, sets: tuple[type, ...]) -> list[Any]:
    return list(value.args) if isinstance(value, sets) else [value]


def _all_same(gold: Any, pred: Any) -> bool:
    return all(_same(a, b) for a, b in zip(gold, pred, strict=True))


def _same_elements(gold: list[Any], pred: list[Any]) -> bool:
    """Without regard to order: each gold element takes an equal one that is left."""
    left = list(pred)
    for element in gold:
        place = next((i for i, other in enumerate(left) if _same(element, other)), None)
        if place is None:
            return False
        left.pop(place)
    return not left


def _same_relation(gold: Any, pred: Any) -> bool:
    """Equations and inequalities: the same up to a factor (a negative one turns the sign), or the same values of one variable."""
    from math_verify.grader import INVERSE_RELATIONS, is_equation
    from sympy import Eq, Expr, Ne, simplify
    from sympy.core.relational import Relational

    if _both(Relational, gold, pred):
        if not _both(Expr, *gold.args, *pred.args):
            return False  # a named set
        if not gold.free_symbols and not pred.free_symbols:
            return type(gold) is type(pred) and _all_same(gold.args, pred.args)  # else all false statements were equal
        one, other = gold.lhs - gold.rhs, pred.lhs - pred.rhs
        if one == 0 or other == 0:
            return bool(one == other)
        ratio = simplify(one / other)
        if ratio.is_number and ratio.is_nonzero:
            if type(gold) is type(pred) and (isinstance(gold, (Eq, Ne)) or ratio.is_positive):
                return True
            if ratio.is_negative and INVERSE_RELATIONS.get(type(gold)) is type(pred):
                return True
        if _either(Eq, gold, pred):
            return False
    variables = gold.free_symbols | pred.free_symbols
    if len(variables) != 1 or is_equation(gold) or is_equation(pred):
        if _either(Relational, gold, pred) or type(gold) is not type(pred):
            return False
        return _same_elements_of_relations(gold, pred)
    return bool(gold.as_set() == pred.as_set())


def _same_elements_of_relations(gold: Any, pred: Any) -> bool:
    """Chains and systems: the same relations, in any order."""
    ours, left = list(gold.args), list(pred.args)
    for relation in ours:
        place = next((i for i, other in enumerate(left) if _same_relation(relation, other)), None)
        if place is None:
            return False
        left.pop(place)
    return not left


def _same_expression(gold: Any, pred: Any) -> bool:
    from sympy import Float, simplify

    if gold == pred:
        return True
    gold, pred = gold.doit(), pred.doit()
    if gold == pred:
        return True
    if not gold.free_symbols and not pred.free_symbols:
        if not (gold.is_number and pred.is_number):
            return False
        if gold.has(Float) or pred.has(Float):
            return _near(gold, pred)
        if gold.is_Rational and pred.is_Rational:
            return False
        if _apart(gold, pred):
            return False
    elif gold.free_symbols != pred.free_symbols and not gold.has(Float) and not pred.has(Float) and _differ_somewhere(gold, pred):
        return False
    difference = simplify(gold - pred)
    if difference.has(Float) and difference.is_number:
        return abs(difference) < 1e-12
    return difference == 0 or difference.is_zero is True


def _apart(gold: Any, pred: Any) -> bool:
    """Whether two exact numbers clearly differ: relative to their size, for a tiny number is not another tiny number."""
    one, other = gold.evalf(PRECISION), pred.evalf(PRECISION)
    size = max(abs(one), abs(other))
    return bool(size.is_comparable and size > 0 and abs(one - other) > size * 10 ** (10 - PRECISION))


def _differ_somewhere(gold: Any, pred: Any) -> bool:
    """Whether two formulas in different variables differ at one fixed point: a cheap answer before simplifying."""
    from sympy import Rational

    variables = sorted(gold.free_symbols | pred.free_symbols, key=str)
    point = {variable: Rational(7 + 2 * i, 11 + i) for i, variable in enumerate(variables)}
    one, other = gold.subs(point), pred.subs(point)
    return bool(one.is_number and other.is_number and _apart(one, other))


def _near(gold: Any, pred: Any) -> bool:
    """Numbers of which one was written with a decimal point: equal, or a literal of six or more digits that rounds the other."""
    from sympy import Float

    one, other = gold.evalf(30), pred.evalf(30)
    distance, size = abs(one - other), max(abs(one), abs(other))
    if not size.is_comparable:
        return False
    if distance <= size * 1e-12:
        return True
    if _both(Float, gold, pred):
        return False
    literal = gold if isinstance(gold, Float) else pred if isinstance(pred, Float) else None
    if literal is None:
        return False
    digits = str(literal).lstrip("-").rstrip("0")
    whole, _, places = digits.partition(".")
    if "e" in digits or len((whole + places).lstrip("0")) < 6:
        return False
    return bool(distance < 10 ** -len(places))


def main() -> None:
    """Serves requests until the input ends. SIGPROF's default action ends the process when a request has used its CPU time."""
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    sys.set_int_max_str_digits(100_000)
    replies, sys.stdout = sys.stdout, sys.stderr  # a library that prints must not speak for us
    equal("\\frac{1}{2}+x", "x+0.5")  # imports and first-use tables, before any clock runs
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
        try:
            verdict, why = equal(request["gold"], request["pred"])
        except MemoryError:
            verdict, why = None, "comparison ran out of memory"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({"equal": verdict, "why": why}), file=replies, flush=True)


if __name__ == "__main__":
    main()
