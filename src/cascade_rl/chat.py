"""A conversation with a checkpoint on the terminal: what one does by hand to see what a number means."""

import io
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from cascade_rl.errors import CascadeError, DataError
from cascade_rl.model.render import RenderConfig, load_renderer
from cascade_rl.model.sources import load_tokenizer
from cascade_rl.one_checkpoint import name_of
from cascade_rl.records import Message, SamplingParams
from cascade_rl.sample.local import LocalSampler
from cascade_rl.seeds import derive_seed

HELP = "/think on|off, /reset, /quit; anything else is said to the model"


def talk(folder: Path, params: SamplingParams, *, thinking: bool, system: str, seed: int) -> None:
    """Reads lines until end of file or /quit. The same seed and words give the same answers. Raises DataError, ModelError."""
    if not _is_text(system):
        raise DataError("the system message is not valid text (UTF-8); type it again")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # a line with bad bytes is then read, and told of, by itself
    console = Console(highlight=False)
    renderer = load_renderer(load_tokenizer(folder), RenderConfig())
    sampler = LocalSampler(folder)
    params = replace(params, stop_ids=renderer.stop_ids)
    opening = [Message("system", system)] if system else []
    messages = list(opening)
    console.print(f"{name_of(folder)}: {HELP}", style="dim", markup=False)
    while True:
        try:
            line = console.input("[bold]you[/bold] ").strip()
        except EOFError:
            console.print()  # the shell's next line is then one of its own
            return
        if line == "/quit":
            return
        if not _is_text(line):
            console.print("error: this line is not valid text (UTF-8), so the model was not told; type it again", style="red")
        elif line == "/reset":
            messages = list(opening)
        elif line in ("/think on", "/think off"):
            thinking = line.endswith("on")
        elif line.startswith("/"):
            console.print(HELP, style="dim")
        elif line:
            messages.append(Message("user", line))
            try:
                ids = renderer.prompt(messages, (), thinking)
                turn = sampler.sample([ids], 1, params, [derive_seed(seed, len(messages))])[0][0]
            except CascadeError as error:
                console.print(f"error: {error}", style="red", markup=False)
                messages.pop()
                continue
            answer = renderer.parse(turn.answer_ids, (), thinking).message
            if answer.thinking:
                console.print(answer.thinking.strip(), style="dim italic", markup=False)
            ending = "" if turn.finish == "stop" else " [cut at max-new-tokens]"
            console.print(answer.content + ending, markup=False)
            messages.append(answer)


def _is_text(line: str) -> bool:
    """Whether no half of a surrogate pair stands alone in it: bytes that are no UTF-8 read as such halves."""
    return not any("\ud800" <= letter <= "\udfff" for letter in line)
