"""Instruction following: IFEval's 25 kinds of checkable instructions and IFBench's 58, checked by code alone.

    checks = compile_instructions(["punctuation:no_comma", "keywords:existence"], [{}, {"keywords": ["plain"]}])
    grade_instructions(checks, "Short and plain.").value  # 1.0

Two modes: "strict" (the default, for rewards) reads an instruction as a careful person would; "reference" gives the verdicts of
the published checkers, so that published scores can be compared. Offline, deterministic, linear in the length of the answer.
"""

from cascade_rl.grade.instructions.checks import (
    Check,
    Checks,
    IFEvalScores,
    Verdict,
    check,
    check_loose,
    compile_instructions,
    grade_instructions,
    ifeval_scores,
)
from cascade_rl.grade.instructions.describe import describe

__all__ = [
    "Check",
    "Checks",
    "IFEvalScores",
    "Verdict",
    "check",
    "check_loose",
    "compile_instructions",
    "describe",
    "grade_instructions",
    "ifeval_scores",
]
