"""Packed attention against a plain masked softmax over the whole row."""

import pytest
import torch

from cascade_rl.algo.batch import Segment
from cascade_rl.model import attention
from cascade_rl.model.attention import Shape, attend
from cascade_rl.model.pieces import MAX_PADDING, plan_attention


def alone(*lengths: int) -> tuple[Segment, ...]:
    return tuple(Segment(length) for length in lengths)


def seen_by_each(segments, window: int | None) -> torch.Tensor:
    """Bool [T, T]: token by token, the last `window` of the path from the root to the token itself."""
    num_tokens = sum(segment.length for segment in segments)
    seen_TT = torch.zeros(num_tokens, num_tokens, dtype=torch.bool)
    paths: list[list[int]] = []
    starts = torch.tensor([0, *(segment.length for segment in segments)]).cumsum(0).tolist()
    for segment, start in zip(segments, starts[:-1], strict=True):
        path = list(paths[segment.parent]) if segment.parent >= 0 else []
        for at in range(start, start + segment.length):
            path.append(at)
            seen_TT[at, path if window is None else path[-window:]] = True
        paths.append(path)
    return seen_TT


def plain(q_THD, k_TKD, v_TKD, segments, shape: Shape):
    """The definition: one [T, T] matrix of scores with everything forbidden set to minus infinity."""
    group = q_THD.shape[1] // k_TKD.shape[1]
    k_THD, v_THD = k_TKD.repeat_interleave(group, 1), v_TKD.repeat_interleave(group, 1)
    score_HTT = torch.einsum("qhd,shd->hqs", q_THD, k_THD) * shape.scale
    if shape.softcap is not None:
        score_HTT = shape.softcap * torch.tanh(score_HTT / shape.softcap)
    seen_TT = seen_by_each(segments, shape.window)
    return torch.einsum("hqs,shd->qhd", score_HTT.masked_fill(~seen_TT, -torch.inf).softmax(-1), v_THD)


def inputs(num_tokens: int, heads: int = 4, kv: int = 2, size: int = 8):
    generator = torch.Generator().manual_seed(0)
    shapes = [(num_tokens, heads, size), (num_tokens, kv, size), (num_tokens, kv, size)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]


SHARED = (
    # One stretch with answers of several lengths; beside whole samples; of one token, with answers of one.
    (Segment(12), Segment(9, 0), Segment(9, 0), Segment(8, 0), Segment(3, 0)),
    (Segment(20), Segment(12), Segment(11), Segment(7, 1), Segment(6, 1), Segment(30, 2), Segment(2, 2)),
    (Segment(1), Segment(1, 0), Segment(1, 0)),
    # Two stretches that go on from a third, and a sample that goes on from that one alone.
    (Segment(10), Segment(7, 0), Segment(6, 0), Segment(4, 0), Segment(5, 1), Segment(5, 1), Segment(3, 2), Segment(2, 2)),
)


@pytest.mark.parametrize("score_bytes", [attention.MAX_SCORE_BYTES, 4800])
@pytest.mark.parametrize("window,softcap", [(None, None), (5, None), (1, None), (100, None), (None, 2.0), (5, 2.0)])
@pytest.mark.parametrize("segments", [alone(23, 23, 22, 20, 9, 9, 1), alone(40), alone(1), alone(3, 3), *SHARED])
def test_equals_the_definition(segments, window, softcap, score_bytes, monkeypatch):
    # Few scores at once: the same lengths then go through in many blocks, as very long samples do.
    monkeypatch.setattr(attention, "MAX_SCORE_BYTES", score_bytes)
    monkeypatch.setattr(attention, "MIN_QUERIES", 3)
    tensors, shape = inputs(sum(segment.length for segment in segments)), Shape(0.3, window, softcap)
    out = attend(*tensors, plan_attention(segments), shape)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grads = torch.autograd.grad((out * weight).sum(), tensors)
    told = plain(*tensors, segments, shape)
    told_grads = torch.autograd.grad((told * weight).sum(), tensors)
    assert torch.allclose(out, told, rtol=0, atol=1e-12)
    for grad, told_grad in zip(grads, told_grads, strict=True):
        assert torch.allclose(grad, told_grad, rtol=0, atol=1e-12)


def test_nothing_crosses_samples():
    plan = plan_attention(alone(9, 8, 3))
    q, k, v = inputs(20)
    before = attend(q, k, v, plan, Shape(0.3))
    with torch.no_grad():
        k[9:17] += 100.0
        v[9:17] = torch.nan
    after = attend(q, k, v, plan, Shape(0.3))
    assert torch.equal(before[:9], after[:9])
    assert torch.equal(before[17:], after[17:])


def test_answers_to_one_prompt_do_not_see_each_other():
    plan = plan_attention((Segment(9), Segment(8, 0), Segment(8, 0), Segment(3, 0)))
    q, k, v = inputs(28)
    before = attend(q, k, v, plan, Shape(0.3))
    with torch.no_grad():
        k[9:17] += 100.0
        v[9:17] = torch.nan
    after = attend(q, k, v, plan, Shape(0.3))
    assert torch.equal(before[:9], after[:9])
    assert torch.equal(before[17:], after[17:])


def test_pieces_cover_every_sample_once_and_pad_little():
    lengths = sorted([400, 31, 33, 30, 120, 118, 119, 7], reverse=True)
    pieces = plan_attention(alone(*lengths)).pieces
    assert [n for piece in pieces for n in piece.lengths] == lengths
    assert [piece.start for piece in pieces] == [0, 400, 400 + 357, 400 + 357 + 94]
    padded = sum(piece.row_BL.numel() for piece in pieces)
    assert padded <= sum(lengths) / (1 - MAX_PADDING)


def test_answers_share_a_piece_only_with_answers_to_the_same_prompt():
    pieces = plan_attention((Segment(8), Segment(8), Segment(5, 0), Segment(5, 0), Segment(5, 1))).pieces
    assert [piece.lengths for piece in pieces] == [(8, 8), (5, 5), (5,)]
    assert [piece.num_keys for piece in pieces] == [8, 13, 13]
    assert pieces[0].context_C is None
    assert pieces[2].context_C.tolist() == [*range(8, 16)]


def test_a_long_prompt_keeps_its_answers_in_small_pieces():
    pieces = plan_attention((Segment(10_000), *[Segment(50, 0)] * 4)).pieces
    assert [piece.lengths for piece in pieces] == [(10_000,), (50,), (50,), (50,), (50,)]


@pytest.mark.parametrize("segments", [alone(4, 3), (Segment(3), Segment(2, 0), Segment(2, 0))])
def test_gradients_by_finite_differences(segments):
    plan = plan_attention(segments)
    assert torch.autograd.gradcheck(lambda q, k, v: attend(q, k, v, plan, Shape(0.5, 3, 1.5)), inputs(7, heads=2, kv=1, size=3))


@pytest.mark.parametrize("score_bytes", [attention.MAX_SCORE_BYTES, 4800])
@pytest.mark.parametrize("window,softcap", [(None, None), (5, None), (None, 2.0)])
@pytest.mark.parametrize("segments", [alone(23, 23, 22, 20, 9, 9, 1), alone(40), *SHARED])
def test_outputs_that_nobody_asks_for_are_left_out(segments, window, softcap, score_bytes, monkeypatch):
    """Where only some places are read, their outputs and all gradients are those of the whole."""
    monkeypatch.setattr(attention, "MAX_SCORE_BYTES", score_bytes)
    monkeypatch.setattr(attention, "MIN_QUERIES", 3)
    num_tokens = sum(segment.length for segment in segments)
    tensors, shape, plan = inputs(num_tokens), Shape(0.3, window, softcap), plan_attention(segments)
    ends = torch.tensor([segment.length for segment in segments]).cumsum(0)
    for place_U in (ends[-1:] - 1, ends - 1, torch.arange(num_tokens // 2, num_tokens)):
        weight = torch.zeros(num_tokens, 1, 1, dtype=torch.float64)
        weight[place_U] = torch.randn(len(place_U), 1, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        whole, part = attend(*tensors, plan, shape), attend(*tensors, plan.asked(place_U), shape)
        assert torch.allclose(part[place_U], whole[place_U], rtol=0, atol=1e-12)
        told_grads = torch.autograd.grad((whole * weight).sum(), tensors)
        for grad, told_grad in zip(torch.autograd.grad((part * weight).sum(), tensors), told_grads, strict=True):
            assert torch.allclose(grad, told_grad, rtol=0, atol=1e-12)


def test_the_first_place_that_is_asked_is_that_of_any_segment_of_the_piece():
    plan = plan_attention((Segment(10), Segment(10), Segment(4, 0), Segment(4, 0), Segment(4, 1)))
    assert [piece.lengths for piece in plan.pieces] == [(10, 10), (4, 4), (4,)]
    asked = plan.asked(torch.tensor([7, 18, 26, 27]))
    assert [piece.first for piece in asked.pieces] == [7, 2, 4]
    assert [piece.is_idle for piece in asked.pieces] == [False, False, True]
    assert [piece.first for piece in plan.asked(torch.arange(32)).pieces] == [0, 0, 0]
