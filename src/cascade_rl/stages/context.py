"""What a stage is given: where it starts, where it writes, and the few moves that every stage makes (resume, log, save, finish)."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cascade_rl.checkpoint import State, drop_state, load_state, save_state
from cascade_rl.errors import Interrupted
from cascade_rl.model.optim import AdamW
from cascade_rl.model.policy import Policy
from cascade_rl.model.render import Renderer
from cascade_rl.observe.log import Log
from cascade_rl.observe.progress import Progress
from cascade_rl.protocols import Task
from cascade_rl.run import StageDir, folder_atomic, write_atomic, write_json
from cascade_rl.stages.feed import Feed


@dataclass(frozen=True)
class RenderedSample:
    """A conversation as ids: ids int32 [T], mask bool [T] (True where the assistant wrote the token)."""

    ids: np.ndarray
    mask: np.ndarray


@dataclass
class StageContext:
    """One stage's surroundings.

    start: the checkpoint folder it starts from. dir: its own folder. seed: derived from the recipe's seed and the stage's name.
    lineage: who its parent is; finish() adds totals and writes it. stop: says whether the user asked to stop.
    """

    name: str
    start: Path
    dir: StageDir
    seed: int
    dtype: str
    tasks: Mapping[str, Task]
    renderer: Renderer
    lineage: Mapping[str, Any]
    progress_for: Callable[[str, int, int], Progress]
    stop: Callable[[], bool]
    how_to_go_on: str
    say: Callable[[str], None]
    notes: list[str] = field(default_factory=list)
    _metrics: Log | None = None
    _timing: Log | None = None
    _clock: float = 0.0

    # --- data -----------------------------------------------------------------------------------------------------------------

    def rendered(self, task: str, rows: str, num: int) -> Iterator[tuple[str, RenderedSample]]:
        """The conversations of a task's training demonstrations, or of a file's rows, as ids and masks; with where they came from."""
        for where, messages, tools, thinking in self._demonstrations(task, num) if task else self._rows(rows, num):
            for part in self.renderer.conversations(messages, tools, thinking):
                yield where, RenderedSample(np.array(part.token_ids, dtype=np.int32), np.array(part.mask, dtype=bool))

    def _demonstrations(self, task: str, num: int) -> Iterator[tuple[str, Any, Any, bool]]:
        prompts = [prompt for prompt in self.tasks[task].prompts("train") if prompt.gold]
        for prompt in prompts[: num or None]:
            yield prompt.id, (*prompt.messages, *prompt.gold), prompt.tools, prompt.thinking

    def _rows(self, path: str, num: int) -> Iterator[tuple[str, Any, Any, bool]]:
        from cascade_rl.tasks.rows import conversation, read_rows

        for i, row in enumerate(read_rows(path)[: num or None], 1):
            where = f"{path}:{i}"
            yield where, *conversation(row, where)

    # --- resume, log, save ----------------------------------------------------------------------------------------------------

    def resume(self, policy: Policy, optim: AdamW, feed: Feed[Any]) -> int:
        """Puts back the last saved state, cuts the logs to it, and gives the number of steps already done (0 on a fresh start)."""
        self.dir.root.mkdir(parents=True, exist_ok=True)
        state = load_state(self.dir)
        self._metrics, self._timing = Log(self.dir.metrics), Log(self.dir.timing)
        self._clock = time.perf_counter()
        if state is None:
            self._metrics.truncate_to(0)
            self._timing.truncate_to(0)
            return 0
        policy.load_weights(state.tensors["weights"])
        optim.load_state(dict(state.tensors["optim"]))
        feed.restore(state.cursor["feed"])
        self._metrics.truncate_to(state.cursor["metrics_bytes"])
        self._timing.truncate_to(state.cursor["timing_bytes"])
        self.say(f'stage "{self.name}": going on after step {state.step}')
        return state.step

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """One line a step: `values` must be a function of recipe and data alone; the wall time goes to its own file."""
        assert self._metrics is not None and self._timing is not None, "resume() comes before log()"
        self._metrics.write({"step": step, **values})
        now = time.perf_counter()
        self._timing.write({"step": step, "seconds": round(now - self._clock, 4)})
        self._clock = now

    def progress(self, total: int, first: int) -> Progress:
        return self.progress_for(self.name, total, first)

    def note(self, text: str) -> None:
        """Something the user should know of this stage: said now and kept in its lineage."""
        self.notes.append(text)
        self.say(f'stage "{self.name}": {text}')

    def save_if_due(self, step: int, total: int, every: int, policy: Policy, optim: AdamW, feed: Feed[Any]) -> None:
        """Saves the state every `every` steps, and when the user asked to stop (then it raises Interrupted)."""
        stopping = self.stop() and step < total
        if stopping or (every and step % every == 0 and step < total):
            self._save(step, policy, optim, feed)
        if stopping:
            raise Interrupted(
                f'stage "{self.name}": stopped and saved after step {step} of {total}; go on with: {self.how_to_go_on}'
            )

    def _save(self, step: int, policy: Policy, optim: AdamW, feed: Feed[Any]) -> None:
        assert self._metrics is not None and self._timing is not None
        self._metrics.sync()
        self._timing.sync()
        cursor = {"feed": feed.cursor(), "metrics_bytes": self._metrics.position(), "timing_bytes": self._timing.position()}
        tensors = {"weights": policy.weights(), "optim": optim.state()}
        save_state(self.dir, State(step=step, tensors=tensors, cursor=cursor))

    def finish(self, policy: Policy, totals: Mapping[str, Any]) -> None:
        """Writes the checkpoint and the lineage, then DONE, which makes it count; then the state may go."""
        assert self._metrics is not None and self._timing is not None, "resume() comes before finish()"
        self._metrics.sync()
        with folder_atomic(self.dir.checkpoint) as folder:
            policy.save(folder)
        write_json(self.dir.lineage, {**self.lineage, "totals": dict(totals), "notes": self.notes})
        write_atomic(self.dir.done_file, "")
        drop_state(self.dir)

    def close(self) -> None:
        """Closes the logs, however the stage ended."""
        for log in (self._metrics, self._timing):
            if log is not None:
                log.close()
