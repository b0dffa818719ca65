"""Chooses the teachers: nothing is trained, the checkpoint that comes in goes out, and teachers.json says who teaches what."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cascade_rl.eval.matrix import Matrix
from cascade_rl.eval.teachers import select, write_teachers
from cascade_rl.stages.limits import check_finite

if TYPE_CHECKING:
    from cascade_rl.stages.context import StageContext


@dataclass(frozen=True)
class Select:
    """The stage's settings.

    significance   a checkpoint whose paired p against the domain's best is at most this counts as worse; 1: the best mean is taken.
    """

    NOT_IN_FINGERPRINT: ClassVar[tuple[str, ...]] = ()
    start: ClassVar = ""  # always from the stage before, and the next stage from it
    branch: ClassVar = False

    name: str = "select"
    significance: float = 0.05

    def __post_init__(self) -> None:
        check_finite(self)
        if not 0 <= self.significance <= 1:
            raise ValueError(f"significance = {self.significance} is a probability and must be in [0, 1]")

    def task_names(self) -> tuple[str, ...]:
        return ()

    def rewarded_tasks(self) -> tuple[str, ...]:
        return ()

    def files(self) -> tuple[str, ...]:
        return ()

    def arithmetic(self) -> str:
        return "chooses a teacher for each domain from the dev rows of all earlier checkpoints; trains nothing"

    def run(self, ctx: "StageContext") -> None:
        """Leaves ctx.dir.teachers, and ctx.dir.checkpoint as links to the files of ctx.start."""
        chosen = select(Matrix.load(ctx.run.root), ctx.earlier, self.significance)
        for domain, teacher in chosen.items():
            ctx.say(f'stage "{self.name}": {domain}: {teacher.stage}, {teacher.reason}')
        write_teachers(ctx.dir.teachers, chosen)
        ctx.pass_on()
