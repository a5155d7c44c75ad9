"""`planaria-coordinator` as a process of a test."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common.ports import free_port

SPEC = {
    "name": "small",
    "model": {
        "family": "llama",
        "hidden_size": 64,
        "num_layers": 4,
        "num_heads": 4,
        "vocab_size": 256,
    },
    "data": {"path": "/data.txt", "tokenizer": "byte", "sequence_length": 32},
    "training": {"steps": 5, "global_batch_size": 8, "microbatch_size": 2},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    process: subprocess.Popen[str]
    facts: dict[str, Any]
    client: httpx.Client


def command(data_dir: Path, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "planaria_coordinator",
        f"--data-dir={data_dir}",
        "--http-port=0",
        "--grpc-port=0",
        f"--planner-addresses=127.0.0.1:{free_port()}",
        *arguments,
    ]


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("PLANARIA_")}


@contextmanager
def run(data_dir: Path, *arguments: str) -> Iterator[Running]:
    process = subprocess.Popen(
        command(data_dir, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    with process:
        try:
            word, _, facts = process.stdout.readline().partition(" ")
            assert word == "ready"
            found = json.loads(facts)
            token = (data_dir / "token").read_text().strip()
            headers = {"authorization": f"Bearer {token}"}
            with httpx.Client(
                base_url=found["http_url"], headers=headers, timeout=30, trust_env=False
            ) as client:
                yield Running(process=process, facts=found, client=client)
        finally:
            process.kill()
