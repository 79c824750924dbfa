"""What the tests of the experiments share; the folder is on the path for the stand-ins beside this file."""

import pytest
from image_stand_in import save_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A tiny image data set."""
    return save_tiny(tmp_path_factory.mktemp("data") / "tiny.npz")
