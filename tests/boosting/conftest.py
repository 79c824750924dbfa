"""Both engines in turn."""

import pytest
from known_posteriors import ENGINES


@pytest.fixture(params=list(ENGINES))
def engine(request):
    pytest.importorskip(request.param)
    return request.param
