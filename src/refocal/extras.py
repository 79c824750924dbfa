"""Optional packages: the one way to say that one is missing, and what installs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

NAMES = {"sklearn": "scikit-learn"}
"""What pip calls a package, where that is not the name it is imported by."""


@contextlib.contextmanager
def needs(what: str, *packages: str) -> Iterator[None]:
    """Say what to install where an import inside does not find one of these packages.

    The package is named by itself, not by an extra of refocal: that works from a clone and from an index.

    Args:
        what: What needs them.
        *packages: As they are imported.

    Raises:
        ImportError: With the one command that helps. If a package is there and misses another one itself, its
            own error is left as it is.

    Example:
        >>> with needs("a plot", "no_such_package"):
        ...     import no_such_package
        Traceback (most recent call last):
        ImportError: a plot needs no_such_package: pip install no_such_package
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in packages:
            raise
        name = NAMES.get(package, package)
        raise ImportError(f"{what} needs {name}: pip install {name}") from None
