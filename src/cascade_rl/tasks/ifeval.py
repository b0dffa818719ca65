"""IFEval: prompts with instructions that code can check ("no commas", "at least three highlighted sections")."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from cascade_rl.errors import DataError, GraderError
from cascade_rl.grade.instructions import compile_instructions, grade_instructions
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout
from cascade_rl.tasks.files import FileTask, Item, faulty


@dataclass(frozen=True, kw_only=True)
class IFEval(FileTask):
    """Rows {"prompt", "instruction_id_list", "kwargs"}, as IFEval and IFBench are published. No gold answers are known.

    mode: "strict" reads the instructions' own words; "reference" gives the verdicts of the published checkers.
    scoring: "all" pays 1 when every instruction is followed, "fraction" the share that is.
    """

    mode: Literal["strict", "reference"] = "strict"
    scoring: Literal["all", "fraction"] = "all"
    name: str = "ifeval"
    domain: str = "if"

    published: ClassVar[str] = "google-research/google-research on GitHub, instruction_following_eval/data/input_data.jsonl"

    def items(self) -> Iterator[Item]:
        for row in self.rows(Path(self.path)):
            prompt = row.text("prompt")
            ids, kwargs = row.need("instruction_id_list", list), row.need("kwargs", list)
            if any(given is not None and not isinstance(given, dict) for given in kwargs):
                raise DataError(f'{row.where}: "kwargs" must hold one object for each instruction')
            try:
                compile_instructions(ids, kwargs, self.mode)
            except GraderError as error:
                raise faulty(row.where, error) from None
            yield Item(key=prompt, messages=(Message("user", prompt),), reference={"ids": ids, "kwargs": kwargs})

    async def grade(self, rollout: Rollout, tools: Tools | None = None) -> Reward:
        reference = rollout.prompt.reference
        checks = compile_instructions(reference["ids"], reference["kwargs"], self.mode)
        return grade_instructions(checks, rollout.answer, self.scoring)
