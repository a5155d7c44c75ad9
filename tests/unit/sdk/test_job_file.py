"""The job file: what is accepted, and the exact words in which everything else is refused."""

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from planaria import InvalidJobError, JobSpec, load_job_file
from planaria.cli.reference import job_schema
from planaria.job_file import parse_job
from unit.sdk.samples import JOB_FILE

MISSING = object()

FULL: dict[str, Any] = yaml.safe_load(
    """\
name: shakespeare-small
model:    {family: llama, hidden_size: 256, num_layers: 8, num_heads: 8, vocab_size: 256}
data:     {path: corpus/*.txt, tokenizer: byte, sequence_length: 128}
training: {steps: 200, global_batch_size: 32, microbatch_size: 2, seed: 7, dtype: float32,
           reproducible: true, optimizer: {name: adamw, learning_rate: 3e-4, warmup_steps: 20,
           schedule: cosine, weight_decay: 0.1, clip_norm: 1.0}}
resilience: {fault_tolerance: 1}
resources:  {min_nodes: 2, max_nodes: 6, min_nodes_per_pipeline: 1}
output:     {path: out/model, format: huggingface}
scheduler:  default
"""
)


def changed(changes: dict[str, object]) -> dict[str, Any]:
    """Return the full job with fields set, or removed, by their paths."""
    document = copy.deepcopy(FULL)
    for path, value in changes.items():
        *sections, name = path.split(".")
        section = document
        for part in sections:
            section = section[part]
        if value is MISSING:
            del section[name]
        else:
            section[name] = value
    return document


def refusals(changes: dict[str, object]) -> list[str]:
    with pytest.raises(InvalidJobError) as caught:
        parse_job(changed(changes))
    return [str(problem) for problem in caught.value.problems]


def test_the_example_of_the_documentation() -> None:
    job = parse_job(FULL)
    assert job.training.optimizer.learning_rate == 3e-4, "YAML 1.1 reads 3e-4 as text"
    assert job.num_microbatches == 16


def test_only_model_data_and_steps_are_needed() -> None:
    minimal = {key: FULL[key] for key in ("model", "data")} | {"training": {"steps": 1}}
    job = parse_job(minimal)
    assert (job.resilience.fault_tolerance, job.scheduler, job.output) == (1, "default", None)


WRONG: list[tuple[dict[str, object], str]] = [
    (
        {"training.optimizer.learning_rat": 1},
        "training.optimizer.learning_rat: unknown field; did you mean learning_rate?",
    ),
    (
        {"foo": 1},
        "foo: unknown field; known here are name, model, data, training, resilience, resources, "
        "init_from, checkpoint, evaluation, output, metrics, scheduler",
    ),
    ({"output.pth": "x"}, "output.pth: unknown field; did you mean path?"),
    ({"training.steps": MISSING}, "training.steps: is missing, and has no default"),
    ({"data": MISSING}, "data: is missing, and has no default"),
    (
        {"data": 3},
        "data: must be a group of fields (path, tokenizer, sequence_length), not 3",
    ),
    (
        {"evaluation": {"data": "held-out.txt"}},
        "evaluation.data: must be a group of fields (path), not 'held-out.txt'",
    ),
    ({"training.steps": 0}, "training.steps: must be at least 1, not 0"),
    ({"training.steps": 1.5}, "training.steps: must be a whole number, not 1.5"),
    ({"training.steps": "many"}, "training.steps: must be a whole number, not 'many'"),
    ({"training.steps": True}, "training.steps: must be a number, not true or false"),
    ({"training.steps": 2**31}, "training.steps: must be at most 2147483647, not 2147483648"),
    ({"training.seed": -1}, "training.seed: must be at least 0, not -1"),
    (
        {"training.optimizer.learning_rate": float("nan")},
        "training.optimizer.learning_rate: must be a finite number, not nan",
    ),
    (
        {"training.optimizer.learning_rate": 0},
        "training.optimizer.learning_rate: must be more than 0.0, not 0",
    ),
    (
        {"training.optimizer.weight_decay": "a lot"},
        "training.optimizer.weight_decay: must be a number, not 'a lot'",
    ),
    (
        {"training.dtype": "float16"},
        "training.dtype: must be 'float32' or 'bfloat16', not 'float16'",
    ),
    ({"training.reproducible": 2}, "training.reproducible: must be true or false, not 2"),
    ({"model.family": "bert"}, "model.family: must be 'gpt2', 'llama' or 'qwen3', not 'bert'"),
    (
        {"model.num_heads": 7},
        "model.num_heads: 7 does not divide hidden_size 256; 4 or 8 would, or set head_dim",
    ),
    (
        {"model.num_key_value_heads": 3},
        "model.num_key_value_heads: 3 does not divide num_heads 8; 2 or 4 would",
    ),
    (
        {"model.vocab_size": 100},
        "model.vocab_size: 100 is too small for the byte tokenizer; it needs at least 256",
    ),
    (
        {"model.max_position_embeddings": 64},
        "data.sequence_length: 128 is more than model.max_position_embeddings 64; "
        "it must be at most 64",
    ),
    (
        {"training.microbatch_size": 5},
        "training.microbatch_size: 5 does not divide training.global_batch_size 32; 4 or 8 would",
    ),
    (
        {"training.microbatch_size": 64},
        "training.microbatch_size: 64 does not divide training.global_batch_size 32; 32 would",
    ),
    (
        {"training.global_batch_size": 2**21},
        "training.microbatch_size: 2 cuts a step into 1048576 microbatches, more than 16384; "
        "it must be at least 128",
    ),
    ({"model.num_layers": 2**31 - 1}, "model.num_layers: must be at most 1000, not 2147483647"),
    (
        {"training.global_batch_size": 2},
        "training.global_batch_size: a step of 1 microbatches cannot feed the 2 pipelines of "
        "resilience.fault_tolerance 1; it must be at least 4",
    ),
    (
        {"resilience.fault_tolerance": -1},
        "resilience.fault_tolerance: must be at least 0, not -1",
    ),
    (
        {"resources.max_nodes": 1},
        "resources.max_nodes: 1 is less than resources.min_nodes 2; it must be at least 2",
    ),
    (
        {"resources.min_nodes_per_pipeline": 4},
        "resources.max_nodes: 6 nodes cannot hold the 2 pipelines of resilience.fault_tolerance 1; "
        "it must be at least 8",
    ),
    (
        {"evaluation": {"every_steps": 5}},
        "evaluation.fraction: is missing; set it, or evaluation.data.path",
    ),
    (
        {"evaluation": {"fraction": 0.1, "data": {"path": "held-out.txt"}}},
        "evaluation.fraction: cannot be combined with evaluation.data; set one of the two",
    ),
    ({"evaluation": {"fraction": 1}}, "evaluation.fraction: must be less than 1, not 1"),
    ({"evaluation": {"fraction": 0}}, "evaluation.fraction: must be more than 0, not 0"),
    ({"evaluation": {"data": {"path": ""}}}, "evaluation.data.path: must not be empty"),
    ({"evaluation": {"every": 5}}, "evaluation.every: unknown field; did you mean every_steps?"),
    (
        {"evaluation": {"fraction": 0.1, "num_sequences": 33}},
        "evaluation.num_sequences: 33 is no multiple of training.microbatch_size 2; "
        "32 or 34 would be",
    ),
    (
        {"evaluation": {"fraction": 0.1, "num_sequences": 1}},
        "evaluation.num_sequences: 1 is no multiple of training.microbatch_size 2; 2 would be",
    ),
    ({"data.path": ""}, "data.path: must not be empty"),
    ({"data.path": ["a", "b"]}, "data.path: must be text, not ['a', 'b']"),
    (
        {"name": "my job"},
        "name: must be letters, digits, '.', '_' or '-' (at most 63), not 'my job'",
    ),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[message for _, message in WRONG])
def test_bad_input_names_the_field_and_what_would_be_right(
    changes: dict[str, object], message: str
) -> None:
    assert refusals(changes)[0] == message


def test_a_misspelt_field_is_reported_before_its_absence() -> None:
    assert refusals({"training.stepz": 1, "training.steps": MISSING}) == [
        "training.stepz: unknown field; did you mean steps?",
        "training.steps: is missing, and has no default",
    ]


@pytest.mark.parametrize("size", [2**31 - 1, 2**31 - 2])
def test_absurd_sizes_are_refused_at_once(size: int) -> None:
    """Looking for a divisor must not take as long as the number is large."""
    changes: dict[str, object] = {
        "training.global_batch_size": size,
        "training.microbatch_size": size - 1,
    }
    assert "does not divide" in refusals(changes)[0]


@pytest.mark.parametrize("document", [None, 3, "text", [], ["model"]])
def test_other_documents_are_no_jobs(document: object) -> None:
    with pytest.raises(InvalidJobError, match="a job file is a set of fields"):
        parse_job(document)


def test_relative_paths_are_taken_from_the_job_file(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    file = folder / "job.yaml"
    text = JOB_FILE.replace("corpus/*.txt", "../corpus/*.txt") + "output: {path: out}\n"
    file.write_text(text.replace("sequence_length", "tokenizer: tok.json, sequence_length"))
    job = load_job_file(file)
    assert job.data.path == str(tmp_path / "corpus" / "*.txt")
    assert job.data.tokenizer == str(folder / "tok.json")
    assert job.output is not None
    assert job.output.path == str(folder / "out")


def test_absolute_paths_and_the_byte_tokenizer_stay(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB_FILE.replace("corpus/*.txt", "/data/*.txt"))
    job = load_job_file(file)
    assert (job.data.path, job.data.tokenizer) == ("/data/*.txt", "byte")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {family: llama\ntraining: 3", "line 2: expected ',' or '}', but got ':'"),
        ("a: 1\n\tb: 2\n", "line 2: found character '\\t' that cannot start any token"),
        ("name: a\nname: b\n", "line 2: name is given twice"),
        ("name: \x00\n", "unacceptable character"),
    ],
)
def test_yaml_errors_name_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(InvalidJobError) as caught:
        load_job_file(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidJobError, match="No such file or directory"):
        load_job_file(tmp_path / "none.yaml")
    with pytest.raises(InvalidJobError, match="Is a directory"):
        load_job_file(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"name: \xff")
    with pytest.raises(InvalidJobError, match="is not UTF-8 text"):
        load_job_file(tmp_path / "binary.yaml")


EMPTY = [
    (
        "checkpoint:\n  # path: runs/x\n",
        "checkpoint: must be a group of fields (path, every_steps, keep, deadline_seconds); "
        "leave the line out for none",
    ),
    (
        "evaluation:\n",
        "evaluation: must be a group of fields (every_steps, data, fraction, num_sequences); "
        "leave the line out for none",
    ),
    (
        "evaluation: {fraction: 0.1, data: }\n",
        "evaluation.data: must be a group of fields (path); leave the line out for none",
    ),
    (
        "training:\n",
        "training: must be a group of fields (steps, global_batch_size, microbatch_size, seed, "
        "dtype, activation_checkpointing, reproducible, "
        "max_skipped_steps, optimizer), not None",
    ),
]


@pytest.mark.parametrize(("text", "message"), EMPTY)
def test_a_section_without_fields_is_no_silent_none(
    job_file: Path, text: str, message: str
) -> None:
    name = text.partition(":")[0]
    others = (line for line in JOB_FILE.splitlines() if not line.startswith(f"{name}:"))
    job_file.write_text("\n".join((*others, text)))
    with pytest.raises(InvalidJobError) as caught:
        load_job_file(job_file)
    assert [str(problem) for problem in caught.value.problems] == [message]


def test_a_section_that_is_null_in_so_many_words_is_none(job_file: Path) -> None:
    """So a job as the coordinator shows it is a job file."""
    job_file.write_text(JOB_FILE + "checkpoint: null\nevaluation: ~\nresources: {max_nodes: }\n")
    job = load_job_file(job_file)
    assert (job.checkpoint, job.evaluation, job.resources.max_nodes) == (None, None, None)
    job_file.write_text(json.dumps(job.to_document()))
    assert load_job_file(job_file) == job


def test_yaml_cannot_run_code(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(InvalidJobError, match="line 1: could not determine a constructor"):
        load_job_file(file)


def test_equal_jobs_have_equal_digests_and_others_not() -> None:
    job = parse_job(FULL)
    reordered = parse_job(dict(reversed(FULL.items())))
    assert job.digest() == reordered.digest() == parse_job(job.to_document()).digest()
    assert job.digest() != parse_job(changed({"training.seed": 8})).digest()
    assert JobSpec.model_validate(json.loads(job.canonical_json())) == job


def test_numbers_that_came_through_protobuf_are_whole_again() -> None:
    """google.protobuf.Struct knows only floating-point numbers."""
    document = json.loads(json.dumps(FULL), parse_int=float)
    assert parse_job(document) == parse_job(FULL)


def test_jobs_cannot_be_changed_in_place() -> None:
    job = parse_job(FULL)
    with pytest.raises(ValueError, match="frozen"):
        job.training.steps = 3


def test_the_schema_agrees_with_the_classes() -> None:
    validator = jsonschema.Draft202012Validator(job_schema())
    validator.check_schema(job_schema())
    validator.validate(json.loads(json.dumps(parse_job(FULL).to_document())))
    assert not validator.is_valid(changed({"training.steps": 0}))
    assert not validator.is_valid(changed({"foo": 1}))


def test_every_field_is_described() -> None:
    """`planaria schema` is where editors take their hints from."""
    schema = job_schema()
    sections = [schema, *(kind for kind in schema["$defs"].values() if "properties" in kind)]
    for section in sections:
        assert section["description"], section["title"]
        for name, field in section["properties"].items():
            described = field.get("description", "").endswith(".") or "$ref" in field
            assert described, f"{section['title']}.{name}"


def test_a_job_that_evaluates_commits_once_more_than_it_has_steps(tmp_path: Path) -> None:
    document = changed({"evaluation": {"data": {"path": "held-out/*.txt"}}})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document))
    job = load_job_file(tmp_path / "job.yaml")
    assert job.evaluation is not None
    assert job.evaluation.data is not None
    assert job.evaluation.data.path == str(tmp_path / "held-out/*.txt")
    assert (job.evaluation.every_steps, job.num_commits) == (100, 201)
    assert parse_job(FULL).num_commits == 200
