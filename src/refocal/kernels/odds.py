"""The posterior of the sigmoid focal loss as machine code: one read, one write, in either precision."""

from __future__ import annotations

from numba import carray

from refocal.kernels import real
from refocal.kernels.entries import ONE, SOME, ZERO, F, body, entry, exactly, wide
from refocal.kernels.machine import INT, REAL, doubles, floats, kernel, next_part, view

SMALL = F(1e-8)
"""Below it log(1 + x) / x is 1 - x / 2 in either precision."""

HALF = F(0.5)


@entry
def _log_odds(z, gamma, shift):
    """Return the log-odds of the posterior, see `refocal.SigmoidFocal`."""
    size = abs(z)
    x = real.exp(-size)
    log = real.log1p_of_share(x)
    near = log / x if x > SMALL else ONE - HALF * x  # rho(|z|)
    far = x * (size + log) if x > ZERO else ZERO  # rho(-|z|)
    tilt = real.log((ONE + gamma * far) / (ONE + gamma * near))
    return (ONE + gamma) * z + (tilt if z > ZERO else -tilt) + shift


@exactly
def _log_posterior(z, gamma, shift, result):
    wide()
    for j in range(z.size):
        t = _log_odds(z[j], gamma, shift)
        result[j] = (t if t < ZERO else ZERO) - real.log1p_of_share(real.exp(-abs(t)))


@exactly
def _posterior(z, gamma, shift, result):
    wide()
    for j in range(z.size):
        t = _log_odds(z[j], gamma, shift)
        x = real.exp(-abs(t))
        result[j] = (x if t < ZERO else ONE) / (ONE + x)


@body
def _run(record, a, z, result, numbers):
    numbers[0], numbers[1] = a.gamma, a.shift
    part, first, last = next_part(record, a.parts, a.count)
    while part < a.parts:
        for i in range(first, last, SOME):
            j = min(i + SOME, last)
            if a.logarithm:
                _log_posterior(view(z, i, j), numbers[0], numbers[1], view(result, i, j))
            else:
                _posterior(view(z, i, j), numbers[0], numbers[1], view(result, i, j))
        part, first, last = next_part(record, a.parts, a.count)


FIELDS = {"z": INT, "gamma": REAL, "shift": REAL, "logarithm": INT, "result": INT, "numbers": INT}
"""Logits; gamma and what alpha adds to the log-odds; whether the logarithm is wanted; where the result goes,
and memory for two numbers in its precision."""


@kernel(**FIELDS)
def odds_of_floats(record):
    """The posterior in single precision."""
    a = carray(record, 1)[0]
    z, result = carray(floats(a.z), a.count), carray(floats(a.result), a.count)
    _run(record, a, z, result, carray(floats(a.numbers), 2))


@kernel(**FIELDS)
def odds_of_doubles(record):
    """The posterior in double precision."""
    a = carray(record, 1)[0]
    z, result = carray(doubles(a.z), a.count), carray(doubles(a.result), a.count)
    _run(record, a, z, result, carray(doubles(a.numbers), 2))
