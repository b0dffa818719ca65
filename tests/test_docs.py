"""The documents are true: links lead somewhere, named functions exist, and what getting-started prints can be typed."""

import importlib
import json
import re
import shlex
from pathlib import Path

import pytest

from cascade_rl.cli import main

ROOT = Path(__file__).resolve().parent.parent
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FORMULAS = (ROOT / "docs" / "formulas.md").read_text()
STARTED = (ROOT / "docs" / "getting-started.md").read_text()
LINKS = re.findall(r"\[`([\w.]+)`\]\(\.\./([\w/]+\.py)\)", FORMULAS)


@pytest.mark.parametrize("document", DOCS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text()):
        if "://" not in link:
            assert (document.parent / link).exists(), f"{document.name} links to {link}"


def test_every_formula_has_its_function() -> None:
    assert len(LINKS) > 30
    assert FORMULAS.count(".py)") == len(LINKS), "every link to code is `name` in a file"
    for name, path in LINKS:
        if path.startswith("examples/"):
            assert f"\ndef {name}(" in (ROOT / path).read_text()
            continue
        found = importlib.import_module(path.removeprefix("src/").removesuffix(".py").replace("/", "."))
        for part in name.split("."):
            assert hasattr(found, part), f"{path} has no {name}"
            found = getattr(found, part)
        assert getattr(found, "__doc__", None), f"{name} tells nothing of its formula"


def test_what_the_advice_quotes_is_what_the_code_says() -> None:
    """Every message of the table of errors, up to its first figure or name, stands in the source."""
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    quoted = re.findall(r"^\| `([^`]+)`", STARTED.split("## When something goes wrong")[1], re.MULTILINE)
    assert len(quoted) >= 6
    for message in quoted:
        pieces = [piece for piece in re.split(r'\b[NM]\b|"\.\.\."', message) if len(piece.strip()) > 4]
        assert pieces
        for piece in pieces:
            assert piece.strip(' "') in source, message


# The commands are those of the document; its sizes are cut, so that the test takes seconds.
SHORTER = [("steps = 120", "steps = 20"), ("pack_tokens = 1024", "pack_tokens = 512"), ("dev = 40", "dev = 6"), ("test = 80", "test = 6"),
           ("prompts_per_step = 16", "prompts_per_step = 4"), ("[0, 1]", "[0]")]  # fmt: skip


@pytest.mark.slow
def test_getting_started_can_be_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in re.findall(r"^```toml file=(\S+)\n(.*?)^```$", STARTED, re.DOTALL | re.MULTILINE):
        for long, short in SHORTER:
            text = text.replace(long, short)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CASCADE_CACHE", str(tmp_path / "cache"))
    told = {}
    for block in re.findall(r"^```console\n(.*?)^```$", STARTED, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            dollar, cascade, *argv = shlex.split(line)
            assert (dollar, cascade) == ("$", "cascade")
            assert main(argv) == 0, (line, capsys.readouterr().err)
            told[line] = capsys.readouterr().out
    plan = told["$ cascade plan first.toml --set rl.steps=6"]
    assert re.search(r"1\. sft +\w+ +done, will be skipped", plan)
    assert re.search(r"2\. rl +\w+ +will run", plan)
    assert len(list((tmp_path / "runs" / "first" / "stages").glob("02-rl-*"))) == 2
    figures = json.loads((tmp_path / "runs" / "ablate-variants" / "ablation.json").read_text())
    assert [variant["name"] for variant in figures["variants"]] == ["base", "no-rl"]
