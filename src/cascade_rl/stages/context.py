"""What a stage is given: where it starts, where it writes, and the few moves that every stage makes (resume, log, save, finish)."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cascade_rl.checkpoint import State, drop_state, load_pieces, load_state, save_piece, save_state
from cascade_rl.errors import Interrupted
from cascade_rl.model.optim import AdamW
from cascade_rl.model.policy import Policy
from cascade_rl.model.render import Renderer
from cascade_rl.observe.log import Log, read_log, rollout_row
from cascade_rl.observe.progress import Progress
from cascade_rl.protocols import Task
from cascade_rl.records import Group
from cascade_rl.run import Checkpoint, RunDir, StageDir, folder_atomic, link_folder, write_atomic, write_json
from cascade_rl.stages.feed import Feed


@dataclass
class StageContext:
    """One stage's surroundings.

    start: the checkpoint folder it starts from. dir: its own folder. seed: derived from the recipe's seed and the stage's name.
    lineage: who its parent is; finish() adds totals and writes it. stop: says whether the user asked to stop.
    run: the run that the stage belongs to. earlier: every checkpoint before the stage, from old to new; the last is `start`.
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
    run: RunDir
    earlier: Sequence[Checkpoint]
    notes: list[str] = field(default_factory=list)
    _logs: dict[str, Log] = field(default_factory=dict)
    _clock: float = 0.0
    _seconds: dict[str, float] = field(default_factory=dict)

    # --- resume, log, save ----------------------------------------------------------------------------------------------------

    def resume(self, policy: Policy, optim: AdamW, feed: Feed[Any]) -> int:
        """Puts back the last saved state, cuts the logs to it, and gives the number of steps already done (0 on a fresh start).

        The policy's checkpoint gets the template that it is trained with, which need not be the one that its start brought.
        """
        policy.tokenizer.chat_template = self.renderer.template
        state = load_state(self.dir)
        self._open_logs(state.cursor["log_bytes"] if state else {})
        if state is None:
            return 0
        policy.load_weights(state.tensors["weights"])
        optim.load_state(state.tensors["optim"])
        feed.restore(state.cursor["feed"])
        self.say(f'stage "{self.name}": going on after step {state.step}')
        return state.step

    def pieces(self) -> list[Any]:
        """For a stage that is made piece by piece: what is saved of it, in order. Its log starts anew, and is written at the end."""
        self._open_logs({})
        if found := load_pieces(self.dir):
            self.say(f'stage "{self.name}": going on with what was saved')
        return found

    def save_piece(self, value: Any, *, last: bool) -> None:
        """Saves a piece (JSON); if there are others to come and the user asked to stop, raises Interrupted."""
        save_piece(self.dir, value)
        if self.stop() and not last:
            raise Interrupted(f'stage "{self.name}": stopped and saved; go on with: {self.how_to_go_on}')

    def _open_logs(self, lengths: Mapping[str, int]) -> None:
        """Opens the logs, cut to what the saved state knows of them."""
        self.dir.root.mkdir(parents=True, exist_ok=True)
        for name, path in self._log_paths().items():
            if name in lengths or path.exists() or name != "rollouts":
                self._logs[name] = Log(path)
                self._logs[name].truncate_to(lengths.get(name, 0))
        self._clock = time.perf_counter()

    def _log_paths(self) -> dict[str, Path]:
        return {"metrics": self.dir.metrics, "timing": self.dir.timing, "rollouts": self.dir.rollouts}

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """One line a step: `values` must be a function of recipe and data alone; wall times go to their own file."""
        self._logs["metrics"].write({"step": step, **values})
        now = time.perf_counter()
        parts = {f"{part}_s": round(seconds, 4) for part, seconds in self._seconds.items()}
        self._logs["timing"].write({"step": step, "seconds": round(now - self._clock, 4), **parts})
        self._clock = now
        self._seconds.clear()

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The lines that `log` has written so far, those of before a resume included."""
        return read_log(self.dir.metrics)

    @contextmanager
    def timed(self, part: str) -> Generator[None]:
        """Counts the wall time of its block to `part` of the running step: "sampling" becomes `sampling_s` in timing.jsonl."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.count_time(part, time.perf_counter() - begin)

    def count_time(self, part: str, seconds: float) -> None:
        """The same for a time that was measured elsewhere. `overlapped_s`: for how long of `sampling_s` verdicts were being given too."""
        self._seconds[part] = self._seconds.get(part, 0.0) + seconds

    def log_rollouts(
        self, step: int, groups: Sequence[Group], advantages: Callable[[Sequence[float | None]], Sequence[Any]]
    ) -> None:
        """Writes the first group of each task, token by token, for people to read."""
        if "rollouts" not in self._logs:
            self._logs["rollouts"] = Log(self.dir.rollouts)
        shown = {group.prompt.task: group for group in reversed(groups)}
        for group in shown.values():
            told = advantages([reward.value for reward in group.rewards])
            for index, advantage in enumerate(told):
                row = rollout_row(
                    group,
                    index,
                    self.renderer.decode,
                    stage=self.name,
                    step=step,
                    trained=advantage is not None,
                    advantage=advantage,
                )
                self._logs["rollouts"].write(row)

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
        policy.check_finite()
        for log in self._logs.values():
            log.sync()
        lengths = {name: log.position() for name, log in self._logs.items()}
        cursor = {"feed": feed.cursor(), "log_bytes": lengths}
        tensors = {"weights": policy.weights(), "optim": optim.state()}
        save_state(self.dir, State(step=step, tensors=tensors, cursor=cursor))

    def finish(self, save: Callable[[Path], Any], totals: Mapping[str, Any], **lineage: Any) -> None:
        """Writes the checkpoint (`save` fills its folder) and the lineage, then DONE, which makes it count; then the state may go."""
        for log in self._logs.values():
            log.sync()
        with folder_atomic(self.dir.checkpoint) as folder:
            save(folder)
        write_json(self.dir.lineage, {**self.lineage, **lineage, "totals": dict(totals), "notes": self.notes})
        write_atomic(self.dir.done_file, "")
        drop_state(self.dir)

    def pass_on(self, **lineage: Any) -> None:
        """Ends a stage that trains nothing: its checkpoint is links to the files of its start, and its row that one's."""
        self.finish(partial(link_folder, self.start), {}, **lineage, passed_on=True)

    def close(self) -> None:
        """Closes the logs, however the stage ended."""
        for log in self._logs.values():
            log.close()
