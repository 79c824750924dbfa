"""The strict rule of both studies: when a mean over trials agrees with a published one.

A published number is a mean over ten trials with a spread in brackets, which is read as a standard deviation
(docs/reproduce.md). So the distance of two means is

.. math:: z = (m - m_0) / \\sqrt{s^2 / n + s_0^2 / 10}

and the strict rule is |z| <= 3. It has no floor: a number that hardly varies must be met as exactly as it is
printed.
"""

from __future__ import annotations

import math

PAPER_TRIALS = 10
STRICT = 3.0


def z_of(mean: float, standard_error: float, published: float, published_sd: float) -> float:
    """Return the distance of a mean from a published one in standard errors of their difference.

    Args:
        mean: Ours.
        standard_error: Of it: the standard deviation over trials divided by the root of their number.
        published: The paper's mean.
        published_sd: What the paper has in brackets.

    Returns:
        The distance; infinite where neither varies and they differ.

    Example:
        >>> round(z_of(5.5, 0.3, 5.0, 0.4 * 10**0.5), 3)
        1.0
    """
    gap, spread = mean - published, math.hypot(standard_error, published_sd / math.sqrt(PAPER_TRIALS))
    return gap / spread if spread else math.copysign(math.inf, gap) if gap else 0.0
