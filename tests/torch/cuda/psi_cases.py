"""psi and its logarithm by Triton's interpreter: what `test_interpreted.py` runs in a process of its own."""

from __future__ import annotations

import exact
import numpy as np
import pytest
import torch

import refocal
from refocal import _compiled, focal
from refocal._arrays import map_rows

TOLERANCE = 2e-6
GAMMAS = [0.0, 0.5, 1.0, 2.0, 3.0, 7.3, 16.0]


@pytest.fixture
def launch(monkeypatch):
    """Return the launcher, whose rows of more than 16 classes are long, in columns of 8."""
    from refocal.kernels.cuda import launch

    monkeypatch.setattr(launch, "LONGEST", 16)
    monkeypatch.setattr(launch, "AT_A_TIME", 8)
    return launch


def awkward_logits(shape, seed=0):
    """Return logits with a class far ahead, masked classes, ties, infinities and a NaN."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=shape) * rng.choice([1.0, 20.0, 400.0], size=shape)
    z.flat[0], z.flat[-1] = -np.inf, 1e4
    if z.size > 40:
        z.flat[7], z.flat[23] = np.inf, np.nan
    return z.astype(np.float32)


def edges(k):
    """Return rows of k classes that have been hard for somebody."""
    nothing, low = -np.inf, np.full(k - 1, -np.inf)
    return np.array(
        [
            [1e4, *np.zeros(k - 1)],
            [*np.zeros(k - 1), 1e4],
            [-1e4, *np.full(k - 1, 1e4)],
            [90.0, *np.zeros(k - 1)],  # e^-90 is no normal number
            np.zeros(k),
            [5.0, 5.0, *np.zeros(k - 2)],
            [3.0, *low],  # alone
            [nothing, 2.0, *np.zeros(k - 2)],
            np.full(k, nothing),
            [np.inf, *np.zeros(k - 1)],
            [np.nan, *np.zeros(k - 1)],
            [*np.zeros(k - 1), np.nan],
            np.linspace(-3, 3, k),
            np.linspace(40, -40, k),
        ],
        dtype=np.float32,
    )


def assert_close(found, expected, tolerance=TOLERANCE):
    found = np.asarray(found.float(), dtype=np.float64)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
    some = np.isfinite(expected)
    error = np.abs(found[some] - expected[some]) / np.maximum(1, np.abs(expected[some]))
    assert error.max(initial=0) <= tolerance


def expected_log_psi(z, gamma, axis=-1):
    return map_rows(focal._log_psi, np.asarray(z, np.float64), gamma, axis=axis % np.ndim(z))


def test_the_interpreter_runs_here():
    import triton

    assert triton.knobs.runtime.interpret
    assert _compiled._fits_gpu(torch.zeros(2, 2))


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("k", [2, 10])
def test_edges(launch, k, gamma):
    z = edges(k)
    expected = expected_log_psi(z, gamma)
    assert_close(refocal.log_psi(torch.from_numpy(z), gamma), expected)
    assert_close(refocal.Focal(gamma).posterior(torch.from_numpy(z)), np.exp(expected))


@pytest.mark.parametrize("gamma", [0.0, 2.0, 7.3])  # each row is a program, which takes its time
def test_edges_of_long_rows(launch, gamma):
    z = edges(19)
    expected = expected_log_psi(z, gamma)
    assert_close(refocal.log_psi(torch.from_numpy(z), gamma), expected)
    few = [0, 5, 7, 12]
    assert_close(refocal.Focal(gamma).posterior(torch.from_numpy(z[few])), np.exp(expected[few]))


@pytest.mark.parametrize("gamma", [0.3, 2.0])
def test_mpmath(launch, gamma):
    rng = np.random.default_rng(2)
    for z in (rng.normal(size=(3, 4)) * 5, rng.normal(size=(2, 20)) * 9, edges(3)[:4]):
        z = z.astype(np.float32)
        expected = np.array([exact.log_psi(row, gamma) for row in z])
        assert_close(refocal.log_psi(torch.from_numpy(z), gamma), expected)


def test_next_to_one_nothing_is_lost(launch):
    for others in (1, 20):  # a short row and a long one
        z = torch.tensor([[20.0] + [0.0] * others])
        expected = exact.log_psi(z[0].numpy(), 2.0)
        found = refocal.log_psi(z, 2.0)[0].double().numpy()
        np.testing.assert_allclose(found, expected, rtol=3e-6)
        assert -1e-20 < found[0] < 0


@pytest.mark.parametrize(
    "shape, axis", [((5, 3), 1), ((5, 3), 0), ((2, 7, 3, 4), 1), ((9, 20), 1), ((2, 18, 2), 1), ((3, 2), 1)]
)
def test_every_layout(launch, shape, axis):
    z = torch.from_numpy(awkward_logits(shape))
    expected = expected_log_psi(z, 2.5, axis)
    layouts = [
        z,
        z.mT.contiguous().mT,
        torch.stack([z, z], -1)[..., 0],
        z.movedim(0, -1).contiguous().movedim(-1, 0),
    ]
    for x in layouts:
        assert_close(refocal.log_psi(x, 2.5, axis=axis), expected)
    if z.ndim == 4:
        x = z.to(memory_format=torch.channels_last)
        found = refocal.log_psi(x, 2.5, axis=axis)
        assert_close(found, expected)
        assert found.stride() == x.stride()
        assert_close(refocal.log_psi(z[:, :, ::2], 2.5, axis=axis), expected[:, :, ::2])


def test_long_rows_that_are_not_evenly_spaced(launch):
    z = torch.from_numpy(np.random.default_rng(8).normal(size=(3, 18, 2, 1)).astype(np.float32))
    for x in (z.to(memory_format=torch.channels_last)[::2], z[::2], z.expand(3, 18, 2, 2)[:1]):
        assert_close(refocal.log_psi(x, 2.0, axis=1), expected_log_psi(x, 2.0, 1))


def test_many_classes_in_a_block_and_in_many():
    from refocal.kernels.cuda import launch

    z = awkward_logits((2, 1000), seed=3)
    assert_close(refocal.log_psi(torch.from_numpy(z), 2.0), expected_log_psi(z, 2.0))
    z = awkward_logits((1, launch.LONGEST + 1), seed=4)
    z[~np.isfinite(z)] = 0
    assert_close(refocal.log_psi(torch.from_numpy(z), 2.0), expected_log_psi(z, 2.0))


def test_more_rows_than_a_program_does(launch, monkeypatch):
    monkeypatch.setattr(launch, "SOME", 8)
    z = awkward_logits((2, 4, 3, 3), seed=5)
    assert_close(refocal.log_psi(torch.from_numpy(z), 2.0, axis=1), expected_log_psi(z, 2.0, 1))


@pytest.mark.parametrize(
    "k, gamma", [*((k, gamma) for k in (2, 10) for gamma in GAMMAS), (19, 2.0), (19, 0.5)]
)
def test_psi_of_scores(launch, k, gamma):
    rng = np.random.default_rng(1)
    p = np.concatenate([rng.dirichlet(np.full(k, a), size=3) for a in (0.05, 1.0, 30.0)])
    p = np.concatenate([p, np.eye(k)[:1], np.eye(k)[-1:], np.full((1, k), 1 / k)])
    p = np.concatenate([p, [[0.5, 0.5, *[0.0] * (k - 2)], [1 - 1e-7, 1e-7, *[0.0] * (k - 2)]]]).astype(
        np.float32
    )
    expected = map_rows(focal.psi_body, p.astype(np.float64), gamma, axis=1)
    found = refocal.psi(torch.from_numpy(p), gamma)
    assert_close(found, expected)
    assert (found[torch.from_numpy(p) == 0] == 0).all()
    wrong = torch.tensor([[np.nan, 1.0, *[0.0] * (k - 2)], [-0.5, 1.5, *[0.0] * (k - 2)], [0.0] * k])
    assert refocal.psi(wrong, gamma, check=False).isnan().all()


@pytest.mark.parametrize("k", [6, 19])
def test_weights_and_gammas_of_classes(launch, k):
    rng = np.random.default_rng(4)
    z = edges(k)[:: 2 if k == 19 else 1]
    gamma, weight = tuple(rng.uniform(0, 4, k)), tuple(rng.uniform(0.1, 9, k))
    for spec in (refocal.Focal(gamma, weight), refocal.Focal(2.0, weight), refocal.Focal(gamma)):
        wide = z.astype(np.float64)
        expected = map_rows(spec._log_posterior, wide, *spec._parameters(wide, 1), axis=1)
        assert_close(spec.log_posterior(torch.from_numpy(z)), expected)
        if k == 6 or spec.gamma == 2.0:
            assert_close(spec.posterior(torch.from_numpy(z)), np.exp(expected))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(launch, dtype):
    rng = np.random.default_rng(6)
    for k in (5, 19):
        z = torch.from_numpy(rng.normal(size=(4, k)) * 4).to(dtype)
        expected = torch.from_numpy(expected_log_psi(z.double().numpy(), 2.0))
        found = refocal.log_psi(z, 2.0)
        assert found.dtype == dtype
        gap = (found.double() - expected).abs() / expected.abs().clamp(min=1e-3)
        # The interpreter cuts float32 to bfloat16, where a device rounds.
        assert gap.max() <= torch.finfo(dtype).eps / (2 if dtype == torch.float16 else 1) + 1e-5


def test_large_gammas_are_as_exact_as_array_operations(launch, monkeypatch):
    z = torch.from_numpy(np.concatenate([edges(5), edges(5)[::-1] / 3]))
    expected = expected_log_psi(z, 300.0)
    found = refocal.log_psi(z, 300.0)
    monkeypatch.setattr(_compiled, "_fits_gpu", lambda x: False)
    plain = refocal.log_psi(z, 300.0)
    some = np.isfinite(expected)
    far = [
        np.abs(y.double().numpy()[some] - expected[some]) / np.maximum(1, np.abs(expected[some]))
        for y in (found, plain)
    ]
    assert far[0].max() <= 2 * far[1].max() + TOLERANCE
    assert (found.isnan() == plain.isnan()).all()


def test_nothing_and_those_who_follow_operations(launch, monkeypatch):
    assert refocal.log_psi(torch.zeros(0, 3), 2.0).shape == (0, 3)
    assert refocal.log_psi(torch.zeros(2, 3, 0), 2.0, axis=1).shape == (2, 3, 0)
    called = []
    monkeypatch.setattr(launch, "psi", lambda *args, **kwargs: called.append(args))
    z = torch.zeros(2, 3, requires_grad=True)
    refocal.log_psi(z, 2.0).sum().backward()
    torch.func.vmap(lambda x: refocal.log_psi(x, 2.0))(z.detach())
    refocal.log_psi(z.detach().double(), 2.0)
    refocal.log_psi(z.detach(), torch.tensor([1.0, 2.0]))
    assert called == []
    with torch.no_grad():
        refocal.log_psi(z, 2.0)
    assert len(called) == 1


def test_more_rows_than_32_bits_can_count(monkeypatch, tmp_path):
    """Of a file with holes: only the rows of the last program are ever read or written."""
    from triton.runtime import interpreter

    from refocal.kernels.cuda import launch

    n, last = 2**31 + 3, torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.5, 0.5]])
    z, out = (
        torch.from_file(str(tmp_path / name), shared=True, size=2 * n, dtype=torch.bfloat16).view(n, 2)
        for name in ("z", "out")
    )
    for name in ("z", "out"):
        (tmp_path / name).unlink()
    z[-3:] = last
    kernel, builder = launch.psi_of_short_rows, type(interpreter.interpreter_builder)

    class LastProgram:
        def __getitem__(self, grid):
            place = (grid[0] - 1, 0, 0)
            monkeypatch.setattr(builder, "set_grid_idx", lambda self, *_: setattr(self, "grid_idx", place))
            return kernel[(1,)]

    monkeypatch.setattr(launch, "psi_of_short_rows", LastProgram())
    # Nothing is copied back from the CPU, where it is.
    monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *args: None)
    monkeypatch.setattr(torch, "empty_like", lambda x: out)
    launch.psi(z, 2.0, 1, logarithm=True, scores=False, log_weights=None)
    assert_close(out[-3:], expected_log_psi(last, 2.0), 0.01)
    assert not out[-600:-3].any()  # rows of the program before


def test_numbers_of_classes_are_not_moved_again(launch, monkeypatch):
    """A move waits for the device, and a CUDA graph cannot have one in it."""
    z, spec = torch.linspace(-2, 2, 6).reshape(2, 3), refocal.Focal((1.0, 2.0, 0.0), (1.0, 2.0, 3.0))
    expected = spec.posterior(z)

    def moved(*args, **kwargs):
        raise AssertionError("numbers were moved")

    for name in ("tensor", "asarray", "as_tensor"):
        monkeypatch.setattr(torch, name, moved)
    assert torch.equal(spec.posterior(z), expected)
    with pytest.raises(ValueError, match=r"^gamma must have one number for each of the 2 classes, got 3$"):
        spec.posterior(z[:, :2])
