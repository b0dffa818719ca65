"""The allocator's setting: harmless wherever it runs, and said to be on only where it is."""

import platform

import torch

from cascade_rl.model.memory import keep_freed_memory


def test_it_is_on_with_glibc_and_tensors_still_come_and_go():
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")
    for _ in range(3):
        assert torch.ones(1 << 22).sum() == 1 << 22
