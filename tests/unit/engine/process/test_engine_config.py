"""An engine is told everything by one file, and refuses a wrong one in one line."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.version import PROTOCOL_VERSION
from planaria_worker.engine_config import EngineConfig

CONFIG = EngineConfig(
    protocol_version=PROTOCOL_VERSION,
    engine_id="job-1/a/0/1",
    job_id="job-1",
    generation=3,
    prepare_directive_id="d1",
    job_spec='{"name": "x"}',
    job_secret="s",
    socket_path="/run/engine.sock",
    data_path="/data/tokens",
    forward_flops=(0, 10, 20),
)


def test_a_written_configuration_is_read_back(tmp_path: Path) -> None:
    CONFIG.dump(tmp_path / "config.json")
    assert EngineConfig.load(tmp_path / "config.json") == CONFIG


def test_a_deadline_without_end_is_read_back(tmp_path: Path) -> None:
    endless = dataclasses.replace(CONFIG, lease_seconds=math.inf)
    endless.dump(tmp_path / "config.json")
    assert EngineConfig.load(tmp_path / "config.json") == endless


def test_only_the_owner_can_read_the_secret(tmp_path: Path) -> None:
    CONFIG.dump(tmp_path / "config.json")
    assert (tmp_path / "config.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"generation": "3"}, "generation: Input should be a valid integer"),
        ({"accelerator_kind": "tpu"}, "accelerator_kind: Input should be 'cpu' or 'cuda'"),
        ({"lease_seconds": None}, "lease_seconds: Input should be a valid number"),
        ({"forward_flops": [1, "2"]}, r"forward_flops\.1: Input should be a valid integer"),
        ({"colour": 1}, "colour: Unexpected keyword argument"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, object], complaint: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(dataclasses.asdict(CONFIG) | change))
    with pytest.raises(PlanariaError, match=complaint):
        EngineConfig.load(path)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    values = dataclasses.asdict(CONFIG)
    del values["job_secret"]
    path.write_text(json.dumps(values))
    with pytest.raises(PlanariaError, match="job_secret: Field required"):
        EngineConfig.load(path)


def test_an_engine_of_another_protocol_is_refused(tmp_path: Path) -> None:
    """An agent that was upgraded ends it: it would not understand its directives."""
    path = tmp_path / "config.json"
    dataclasses.replace(CONFIG, protocol_version=PROTOCOL_VERSION - 1).dump(path)
    with pytest.raises(PlanariaError) as refused:
        EngineConfig.load(path)
    assert refused.value.reason is ErrorReason.VERSION_MISMATCH


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanariaError, match=r"config\.json"):
        EngineConfig.load(tmp_path / "config.json")
