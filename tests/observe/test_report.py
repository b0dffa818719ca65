import base64
import hashlib
import importlib.util
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from cascade_rl.errors import RunError
from cascade_rl.eval.matrix import Evaluation, Matrix
from cascade_rl.observe import report
from cascade_rl.observe.log import Log
from cascade_rl.observe.report import build
from cascade_rl.observe.report_curves import running_mean, thin
from cascade_rl.observe.report_html import duration, embedded_json, large, number, tag
from cascade_rl.observe.report_rollouts import MAX_ROLLOUTS, MAX_SAMPLED_TOKENS, clip
from cascade_rl.records import EvalRow
from cascade_rl.run import RunDir, write_json

spec = importlib.util.spec_from_file_location("fake_run", Path(__file__).with_name("fake_run.py"))
fake_run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fake_run)


class Page(HTMLParser):
    """The tags of a page, checked to be nested well, and the text of its scripts."""

    VOID = ("meta", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.scripts, self.text = [], [], [], ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, name, attributes):
        self.tags.append((name, dict(attributes)))
        if name not in self.VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif self.open and self.open[-1] != "style":
            self.text += data

    def of(self, name):
        return [attributes for each, attributes in self.tags if each == name]

    @property
    def rollouts(self):
        return json.loads(self.scripts[0])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return fake_run.write_run(tmp_path_factory.mktemp("run"), prompts=40, samples=2, steps=90)


@pytest.fixture(scope="module")
def text(run):
    assert build(run) == run / "report.html"
    return (run / "report.html").read_text()


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_the_first_screen_tells_the_story(page):
    head = page.text[: page.text.index("Regression matrix")]
    # From SFT on, not from the start, against which everything rises; on dev, since test has not every checkpoint yet.
    assert re.search(r"From sft to multi-domain-rl, on dev: \d tasks rose, none fell, \d cannot be told apart", head)
    assert re.search(r"checkpoint: chat at if-rl \(−[\d.]+\)\.", head)
    assert "3 of 4stages done" in head


def test_the_matrix_is_a_table_of_stages_and_tasks_with_marks(page):
    cells = [a for a in page.of("a") if a.get("data-split") == "dev" and "points" not in a["href"]]
    said = [a["aria-label"] for a in cells]
    drop = next(label for label in said if label.startswith("if-rl, chat: "))
    assert re.search(r"^if-rl, chat: [\d.]+ ± [\d.]+%, 40 prompts; -[\d.]+ ± [\d.]+ against sft, p .*\(drop\)$", drop)
    assert any(re.search(r"unscored$", label) for label in said if label.startswith("sft, code"))
    classes = [attributes.get("class") for attributes in page.of("td")]
    assert "drop" in classes
    assert "rise" in classes
    tables = [a for a in page.of("div") if "data-of-metric" in a]
    shown = [(a["data-of-split"], a["data-of-metric"]) for a in tables if "hidden" not in a]
    assert shown == [("dev", "accuracy")]
    assert {a["data-of-split"] for a in tables} == {"dev", "test"}
    scopes = [a.get("scope") for a in page.of("th")]
    assert set(scopes) == {"row", "col"}


def test_curves_lineage_and_recipe(page):
    captions = [a["aria-label"] for a in page.of("svg")]
    assert any(re.match(r"loss: from [\d.]+ at step 1 to [\d.]+ at step 90", caption) for caption in captions)
    assert any(caption.startswith("tokens/s") for caption in captions)
    assert "not finished" in page.text
    assert '12 samples of "long" skipped' in page.text
    assert '"source": "nano"' in page.text


def test_rollouts_carry_mask_verdict_and_reason(page):
    rows = page.rollouts["rows"]
    kinds = {segment["kind"] for row in rows for segment in row["segments"]}
    assert kinds == {"context", "sampled", "trained"}
    assert any(row["reward"]["value"] is None and "sandbox died" in row["reward"]["why"] for row in rows)
    trained = next(row for row in rows if row["segments"][1]["kind"] == "trained")
    assert trained["advantage"] != 0
    assert len(trained["segments"][1]["tokens"]) == len(trained["segments"][1]["logps"])


def test_few_rollouts_of_each_task_are_shown_and_the_rest_is_counted(run, page):
    rows, left_out = page.rollouts["rows"], page.rollouts["left_out"]
    of_one = [row for row in rows if (row["stage"], row["task"], row["split"]) == ("if-rl", "chat", "train")]
    steps = sorted({row["step"] for row in of_one})
    assert len(of_one) == MAX_ROLLOUTS == 16  # two whole groups of 8: the first and the last
    assert steps == [1, 41]
    written = 9 * 8  # steps 1, 6, ..., 41, a group of 8 each
    assert {"stage": "if-rl", "task": "chat", "split": "train", "num": written - 16} in left_out


def test_hostile_text_stays_text(text, page):
    assert fake_run.HOSTILE not in text
    assert not page.of("img")
    assert "<img" not in text
    assert page.scripts[1].startswith('"use strict"')
    assert len(page.of("script")) == 2
    hostile = [row for row in page.rollouts["rows"] if row["task"] == "swe"]
    assert hostile[0]["messages"][0]["content"] == fake_run.HOSTILE  # kept whole, as data
    assert "innerHTML" not in page.scripts[1]
    assert not re.search(r"insertAdjacentHTML|document\.write|\beval\(|outerHTML", page.scripts[1])


def test_hostile_names_stay_text(tmp_path):
    write_json(
        tmp_path / "recipe.resolved.json", {"name": "<script>x</script>", "model": {"source": '"><img src=y>'}, "stages": []}
    )
    page = Page(build(tmp_path).read_text())
    assert not page.of("img")
    assert "<script>x</script>" in page.text


def test_no_script_but_ours_may_run_and_nothing_is_loaded(text, page):
    policy = page.of("meta")[1]["content"]
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert not re.search(r"https?:", text.replace("http-equiv", ""))
    assert not any("src" in attributes for _, attributes in page.tags)
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)


def test_the_same_run_gives_the_same_bytes(run, text):
    assert build(run).read_text() == text


def test_an_empty_run_says_what_is_missing(tmp_path):
    page = Page(build(tmp_path).read_text())
    for line in ("No evaluation yet", "No curves yet", "No stages yet", "No rollouts yet", "No recipe"):
        assert line in page.text
    with pytest.raises(RunError, match="not a folder"):
        build(tmp_path / "nowhere")


def test_a_run_in_its_first_steps_can_be_told(tmp_path):
    fake_run.write_recipe(tmp_path)
    stage = RunDir(tmp_path).stage(1, "sft", "0f3a91c2")
    with Log(stage.metrics) as log:
        log.write({"step": 1, "loss": 3.5})
    with open(stage.metrics, "ab") as file:
        file.write(b'{"step": 2, "lo')
    page = Page(build(tmp_path).read_text())
    assert "0 of 4stages done" in page.text
    assert "not finished" in page.text
    assert page.text.count("not started") == 3
    assert [a["aria-label"] for a in page.of("svg")] == ["loss: from 3.5 at step 1 to 3.5 at step 1"]


def test_stages_are_found_without_a_recipe(tmp_path):
    with Log(RunDir(tmp_path).stage(2, "if-rl", "5b77d0e4").metrics) as log:
        log.write({"step": 1, "reward": 0.5})
    (tmp_path / "stages" / "old1-02-if-rl-5b77d0e4").mkdir()
    page = Page(build(tmp_path).read_text())
    assert "0 of 1stages done" in page.text
    assert "if-rl" in page.text


def test_damaged_files_cost_only_their_section(tmp_path):
    fake_run.write_run(tmp_path, prompts=4, samples=1, steps=20)
    (tmp_path / "matrix.json").write_text("[" * 200_000)
    stage = RunDir(tmp_path).stage(2, "if-rl", "5b77d0e4")
    stage.metrics.write_text("nonsense\n")
    stage.rollouts.write_text('{"no": "stage"}\n')
    stage.lineage.write_text("[1]")
    page = Page(build(tmp_path).read_text())
    assert "Could not be read: matrix.json: not JSON" in page.text
    assert "metrics.jsonl:1: not JSON" in page.text
    assert "lineage.json: holds a list, expected a dict" in page.text
    assert "cannot be drawn" not in page.text
    assert "rollouts.jsonl: 'stage'" in page.text
    assert any(row["stage"] == "multi-domain-rl" for row in page.rollouts["rows"])
    stage.rollouts.write_text("[" * 200_000 + "\n")
    assert "rollouts.jsonl: maximum recursion depth" in Page(build(tmp_path).read_text()).text


def test_teachers_and_what_was_won_back_are_told_by_hand(tmp_path):
    """chat before 20 of 40, teacher 36, after 32: three quarters of the way; math is its own anchor and has no line."""
    fake_run.write_recipe(tmp_path)
    names = [f"{i:02d}-{name}-{fp}" for i, (name, _, fp) in enumerate(fake_run.STAGES, 1)]
    for place, solved in ((0, 36), (2, 20), (3, 32)):
        scores = {task: {f"{task}/{i}": [float(i < solved)] for i in range(40)} for task in ("chat", "math")}
        stage = fake_run.STAGES[place][0]
        rows = tuple(EvalRow(stage, names[place], task, task, "test", "accuracy", 40, solved / 40, 0.0) for task in scores)
        Matrix.load(tmp_path).add(Evaluation(names[place], "test", rows, scores))
    teachers = {"chat": names[0], "math": names[2]}
    stage = RunDir(tmp_path).stage(4, "mopd", fake_run.STAGES[3][2])
    write_json(stage.lineage, {"student": names[2], "teachers": teachers})
    with Log(stage.metrics) as metrics:
        for step in (1, 2):
            metrics.write(
                {"step": step, "loss": 0.1, "reverse_kl/chat": 0.04 / step, "reverse_kl/math": 0.0, "token_share/chat": 0.2}
            )
    why = "the best of 3 checkpoints at 90.0 ± 4.8%"
    write_json(
        tmp_path / "teachers.json",
        {"chat": {"stage": "sft", "checkpoint": names[0], "mean": 0.9, "stderr": 0.048, "reason": why}},
    )
    recipe = json.loads((tmp_path / "recipe.resolved.json").read_text())
    recipe["stages"][3]["teachers"] = {"math": "multi-domain-rl"}
    write_json(tmp_path / "recipe.resolved.json", recipe)
    page = Page(build(tmp_path).read_text())
    head = page.text[: page.text.index("Regression matrix")]
    assert "taught mopd:chat ← sft 75 ± 11% won backmath ← itself" in head
    assert f"{names[2]}, named in the recipe" not in page.text, "an anchor needs no reason"
    # Both columns fell by 40 points at the third checkpoint and came back by 30 at the last, not above the best.
    assert "Below a task's best earlier checkpoint: chat at multi-domain-rl (−40.0), math at multi-domain-rl (−40.0)." in head
    assert "Won back: chat at mopd (+30.0), math at mopd (+30.0)." in head
    assert page.text.count("↩ 30.0") == 2
    assert f"chatsft90.0 ± 4.8–{why}" in page.text
    assert "What mopd won back" in page.text
    assert "chatsft50.080.090.0+40.0 ± 7.8+30.0 ± 7.375.0 ± 11.0" in page.text
    assert "math" not in page.text.split("What mopd won back")[1].split("test, in %")[0]
    assert "reverse KL to the teacher" in page.text
    assert "reverse_kl/chat" not in page.text, "drawn in its own section, under the domain's name"


def test_a_teacher_that_the_recipe_names_is_told_beside_the_one_that_was_chosen(tmp_path):
    fake_run.write_recipe(tmp_path)
    recipe = json.loads((tmp_path / "recipe.resolved.json").read_text())
    recipe["stages"][3]["teachers"] = {"chat": "if-rl"}
    write_json(tmp_path / "recipe.resolved.json", recipe)
    write_json(tmp_path / "teachers.json", {name: {"stage": "sft", "mean": 0.9, "reason": "best"} for name in ("chat", "code")})
    text = Page(build(tmp_path).read_text()).text
    assert "chatsft90.0–not used by mopd: the recipe names if-rl for itbest" in text
    assert "codesft90.0–best" in text


def test_a_prompt_is_followed_through_the_checkpoints(run, page):
    told = page.rollouts["follow"]
    assert told["stages"]["dev"] == ["start", "sft", "if-rl", "multi-domain-rl"]
    one = next(each for each in told["prompts"] if (each["split"], each["prompt"]) == ("dev", "chat/dev/0"))
    names = list(Matrix.load(run).checkpoints("dev"))
    assert one["scores"] == [Matrix.load(run).scores(name, "dev")["chat"]["chat/dev/0"] for name in names]
    assert len(one["scores"]) == 4
    # An answer of every checkpoint is there to be shown, and the prompts that changed most come first.
    shown = {row["stage"] for row in page.rollouts["rows"] if row["prompt"] == "chat/dev/0" and row.get("step") is None}
    assert shown >= set(told["stages"]["dev"])
    means = [[sum(x or 0 for x in s) / len(s) for s in each["scores"]] for each in told["prompts"] if each["split"] == "dev"]
    moved = [sum(abs(b - a) for a, b in pairwise(told)) for told in means if len(told) == 4]
    assert moved[0] == max(moved)
    assert {"follow-split", "follow-task", "follow-prompt"} <= {a.get("id") for a in page.of("select")}


def test_every_place_that_the_script_fills_is_in_the_page(page):
    script = (Path(report.__file__).parent / "report.js").read_text()
    wanted = set(re.findall(r'\$\("#([\w-]+)"', script))
    assert {"list", "detail", "follow-stages", "follow-asked"} <= wanted
    there = {a["id"] for _, a in page.tags if "id" in a}
    assert wanted <= there, wanted - there


def test_long_rollouts_are_cut_in_the_middle():
    num = MAX_SAMPLED_TOKENS + 500
    row = {
        "segments": [
            {"kind": "context", "text": "a" * 9000, "num_tokens": 9000},
            {"kind": "trained", "tokens": [str(i) for i in range(num)], "logps": [-float(i) for i in range(num)]},
        ],
        "messages": [{"role": "assistant", "content": "x", "thinking": "y" * 20_000}],
    }
    context, head, cut, tail = clip(row)["segments"]
    assert "5,000 characters not shown" in context["text"]
    assert (head["tokens"][0], len(head["tokens"]), cut["text"]) == ("0", 1000, " … 500 tokens not shown … ")
    assert (tail["tokens"][0], tail["logps"][-1], len(tail["logps"])) == ("1500", -1999.0, 500)
    assert len(clip(row)["messages"][0]["thinking"]) < 8100


def test_thinning_keeps_spikes_and_ends():
    points = [(x, 0.0) for x in range(10_000)]
    points[4321] = (4321, 9.0)
    points[7000] = (7000, -9.0)
    kept = thin(points, most=50)
    assert len(kept) <= 100
    assert (4321, 9.0) in kept
    assert (7000, -9.0) in kept
    assert (kept[0][0], kept[-1][0]) == (0, 9999)
    assert kept == sorted(kept)


def test_running_mean_by_hand():
    # 80 points: a window of 2 on either side, narrower at the ends.
    smooth = running_mean([(x, float(x % 2)) for x in range(80)])
    assert [round(y, 3) for _, y in smooth[:4]] == [0.0, 0.333, 0.4, 0.6]
    assert smooth[-1] == (79, 1.0)


def test_html_is_escaped_where_it_is_made():
    made = tag("td", "a < b & c", tag("b", "x"), None, class_="cell", data_task='"><i>', hidden=True, title=None)
    assert made == '<td class="cell" data-task="&quot;&gt;&lt;i&gt;" hidden>a &lt; b &amp; c<b>x</b></td>'
    assert json.loads(embedded_json({"x": "</script>&\u2028"})) == {"x": "</script>&\u2028"}
    assert not set("<>&\u2028") & set(embedded_json({"x": "</script>&\u2028"}))


def test_numbers_for_people():
    assert [number(x) for x in (0, 1.23456, 1234.5678, 12345, 2e-5, 1.5e10)] == ["0", "1.235", "1235", "12,345", "2e-5", "1.5e10"]
    assert number(7005.0, digits=3) == "7005"
    assert [large(x) for x in (560, 34_400, 1.234e6)] == ["560", "34.4k", "1.23M"]
    assert [duration(x) for x in (42, 725, 11_040)] == ["42 s", "12 min 5 s", "3 h 4 min"]
