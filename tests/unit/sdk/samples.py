"""Resources as the coordinator sends them."""

from typing import Any

JOB_FILE = """\
name: tiny
model: {family: llama, hidden_size: 64, num_layers: 4, num_heads: 4, vocab_size: 256}
data: {path: corpus/*.txt, sequence_length: 32}
training: {steps: 10, global_batch_size: 8, microbatch_size: 2}
"""


def _stage(first_layer: int, num_layers: int, *, node_index: int, node_id: str) -> dict[str, Any]:
    return {
        "first_layer": first_layer,
        "num_layers": num_layers,
        "node_index": node_index,
        "node_id": node_id,
        "accelerators": [0],
    }


PLAN: dict[str, Any] = {
    "pipelines": [
        {
            "stages": [
                {
                    "first_layer": 0,
                    "num_layers": 3,
                    "node_index": 0,
                    "node_id": "node-1",
                    "accelerators": [0],
                },
                {
                    "first_layer": 3,
                    "num_layers": 1,
                    "node_index": 1,
                    "node_id": "node-2",
                    "accelerators": [0],
                },
            ],
            "microbatches": [0, 1],
            "iteration_seconds": 0.25,
            "max_microbatches": 0,
        }
    ],
    "idle_node_ids": ["node-3"],
    "iteration_seconds": 0.25,
    "fault_tolerance": 1,
}


def job(**fields: Any) -> dict[str, Any]:
    return {
        "id": "job-1",
        "name": "tiny",
        "state": "RUNNING",
        "step": 3,
        "steps": 10,
        "loss": 5.25,
        "evaluation_loss": None,
        "evaluation_step": None,
        "num_skipped_steps": 0,
        "generation": 2,
        "tokens_per_second": 1234.5,
        "goodput": 0.98,
        "final_digest": "",
        "error": None,
        "create_time": "2026-01-01T10:00:00Z",
        "start_time": None,
        "end_time": None,
        "spec": {},
        "fault_tolerance": 1,
        "time_seconds": {"productive": 3.0},
        "waiting_reason": "",
        "conditions": [],
        **fields,
    }


def node(node_id: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": node_id,
        "state": "READY",
        "address": "127.0.0.1",
        "num_accelerators": 1,
        "accelerator_kind": "cpu",
        "version": "0.1.0",
        "agent_pid": 41,
        "accelerator_memory_bytes": 2**30,
        "labels": {"rack": "r1"},
        "silent_since_time": None,
        "engines": [
            {"id": "e", "job_id": "job-1", "accelerator": 0, "pid": 42, "state": "TRAINING"}
        ],
        "heartbeat_time": "2026-01-01T10:00:00Z",
        "join_time": "2026-01-01T09:00:00Z",
        **fields,
    }


def event(sequence: int, event_type: str = "node_lost", **fields: Any) -> dict[str, Any]:
    return {
        "sequence": sequence,
        "time": "2026-01-01T10:00:00Z",
        "type": event_type,
        "job_id": "job-1",
        "node_id": "",
        "generation": 2,
        "message": f"event {sequence} [of {event_type}]",
        "details": {},
        **fields,
    }


RECOVERY: dict[str, Any] = {
    "id": 1,
    "cause": "node_lost",
    "nodes_lost": ["node-3"],
    "nodes_joined": [],
    "generation": 2,
    "redone_microbatches": 2,
    "copied_bytes": 2_500_000,
    "phases": [{"name": "detect", "start_time": "2026-01-01T10:00:00Z", "duration_seconds": 0.01}],
    "detect_seconds": 0.01,
    "fence_seconds": 0.05,
    "resume_seconds": 0.125,
    "regrow_seconds": 0.5,
    "idle_seconds": 0.0,
    "lost_seconds": None,
    "lost_accelerator_seconds": {"idle": 0.5},
    "start_time": "2026-01-01T10:00:00Z",
    "end_time": None,
    "pipeline_sizes_before": [2, 1],
    "pipeline_sizes_after": [2],
    "reason": "keep the whole one",
}

INFO: dict[str, Any] = {
    "version": "0.1.0",
    "protocol_version": 1,
    "grpc_endpoints": ["127.0.0.1:50051"],
    "http_url": "http://127.0.0.1:8080",
}


def step_metrics(step: int, **fields: Any) -> dict[str, Any]:
    return {
        "step": step,
        "loss": 5.5,
        "evaluation_loss": None,
        "skipped_layer": None,
        "gradient_norm": 1.0,
        "learning_rate": 0.1,
        "num_tokens": 1024,
        "step_seconds": 0.5,
        "tokens_per_second": 2048.0,
        "model_flops_utilization": None,
        "generation": 1,
        "commit_time": "2026-01-01T00:00:00Z",
        **fields,
    }


def log_line(sequence: int, text: str) -> dict[str, Any]:
    time = "2026-01-01T10:00:00Z"
    return {"sequence": sequence, "time": time, "engine_id": "e", "text": text}
