"""What /openapi.json says is what the service does: Schemathesis invents requests, right and wrong, and compares."""

import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from running import serving

from mlpkit.nn.conv import Conv
from mlpkit.nn.layers import Flatten, Linear
from mlpkit.nn.models import Model
from mlpkit.nn.network import Network

pytest.importorskip("uvicorn", reason="no uvicorn here: the extra `serve` brings it")
schemathesis = pytest.importorskip("schemathesis", reason="no schemathesis here")

pytestmark = pytest.mark.slow
SMALL = Model((1, 4, 4), (Conv(2, 3, padding=1), Flatten(), Linear(3)))  # JSON of 28 x 28 takes long to invent


def saved(kind):
    def save(pixels):
        buffer = io.BytesIO()
        Image.fromarray(np.frombuffer(pixels, np.uint8).reshape(4, 4, 3)).save(buffer, kind)
        return buffer.getvalue()

    return save


for name in ("png", "jpeg"):  # what a schema can't say: which bytes are a picture
    schemathesis.openapi.media_type(f"image/{name}", st.binary(min_size=48, max_size=48).map(saved(name.upper())))
ROWS = st.integers(1, 4).flatmap(lambda n: st.binary(min_size=16 * n, max_size=16 * n))
schemathesis.openapi.media_type("application/octet-stream", ROWS)


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "small.npz"
    Network("numba_conv", SMALL).save(path)
    with serving(path, "--data", "none") as server:
        yield schemathesis.openapi.from_url(server.address + "openapi.json")


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_schemathesis_finds_nothing(api, mode):
    operations = [found.ok() for found in api.get_all_operations()]
    assert {operation.path for operation in operations} == {"/classify", "/health", "/metrics", "/"}
    for operation in operations:
        asked = operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode])
        if mode == "NEGATIVE" and operation.path != "/classify":  # it takes nothing that could be wrong
            continue

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=asked)
        def check(case):
            case.call_and_validate()

        check()
