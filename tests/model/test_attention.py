"""Packed attention against a plain masked softmax over the whole row."""

import pytest
import torch

from cascade_rl.model import attention
from cascade_rl.model.attention import Shape, attend, plan_attention


def plain(q_THD, k_TKD, v_TKD, lengths, shape: Shape):
    """The definition: one [T, T] matrix of scores with everything forbidden set to minus infinity."""
    group = q_THD.shape[1] // k_TKD.shape[1]
    k_THD, v_THD = k_TKD.repeat_interleave(group, 1), v_TKD.repeat_interleave(group, 1)
    score_HTT = torch.einsum("qhd,shd->hqs", q_THD, k_THD) * shape.scale
    if shape.softcap is not None:
        score_HTT = shape.softcap * torch.tanh(score_HTT / shape.softcap)
    place_T = torch.arange(len(q_THD))
    owner_T = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    back_TT = place_T[:, None] - place_T
    seen_TT = (owner_T[:, None] == owner_T) & (back_TT >= 0)
    if shape.window is not None:
        seen_TT &= back_TT < shape.window
    return torch.einsum("hqs,shd->qhd", score_HTT.masked_fill(~seen_TT, -torch.inf).softmax(-1), v_THD)


def inputs(num_tokens: int, heads: int = 4, kv: int = 2, size: int = 8):
    generator = torch.Generator().manual_seed(0)
    shapes = [(num_tokens, heads, size), (num_tokens, kv, size), (num_tokens, kv, size)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("score_bytes", [attention.MAX_SCORE_BYTES, 4800])
@pytest.mark.parametrize("window,softcap", [(None, None), (5, None), (1, None), (100, None), (None, 2.0), (5, 2.0)])
@pytest.mark.parametrize("lengths", [(23, 23, 22, 20, 9, 9, 1), (40,), (1,), (3, 3)])
def test_equals_the_definition(lengths, window, softcap, score_bytes, monkeypatch):
    # Few scores at once: the same lengths then go through in many blocks, as very long samples do.
    monkeypatch.setattr(attention, "MAX_SCORE_BYTES", score_bytes)
    tensors, shape = inputs(sum(lengths)), Shape(0.3, window, softcap)
    out = attend(*tensors, plan_attention(lengths), shape)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grads = torch.autograd.grad((out * weight).sum(), tensors)
    told = plain(*tensors, lengths, shape)
    told_grads = torch.autograd.grad((told * weight).sum(), tensors)
    assert torch.allclose(out, told, rtol=0, atol=1e-12)
    for grad, told_grad in zip(grads, told_grads, strict=True):
        assert torch.allclose(grad, told_grad, rtol=0, atol=1e-12)


def test_nothing_crosses_samples():
    lengths = (9, 8, 3)
    q, k, v = inputs(sum(lengths))
    before = attend(q, k, v, plan_attention(lengths), Shape(0.3))
    with torch.no_grad():
        k[9:17] += 100.0
        v[9:17] = torch.nan
    after = attend(q, k, v, plan_attention(lengths), Shape(0.3))
    assert torch.equal(before[:9], after[:9])
    assert torch.equal(before[17:], after[17:])


def test_pieces_cover_every_sample_once_and_pad_little():
    lengths = sorted([400, 31, 33, 30, 120, 118, 119, 7], reverse=True)
    pieces = plan_attention(lengths).pieces
    assert [n for piece in pieces for n in piece.lengths] == lengths
    assert [piece.start for piece in pieces] == [0, 400, 400 + 357, 400 + 357 + 94]
    padded = sum(piece.row_BL.numel() for piece in pieces)
    assert padded <= sum(lengths) / (1 - attention.MAX_PADDING)


def test_gradients_by_finite_differences():
    tensors = inputs(7, heads=2, kv=1, size=3)
    plan = plan_attention((4, 3))
    assert torch.autograd.gradcheck(lambda q, k, v: attend(q, k, v, plan, Shape(0.5, 3, 1.5)), tensors)
