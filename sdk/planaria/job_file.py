"""Reads job files, and says in one line each what is wrong with them."""

import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from planaria.errors import FieldProblem, InvalidJobError
from planaria.job import MODEL_KINDS, JobSpec
from planaria.job.fields import is_expert

_MAX_BYTES = 2**20


def load_job_file(path: str | os.PathLike[str]) -> JobSpec:
    """Read a job file; relative paths in it are taken from the folder it is in.

    Raises:
        InvalidJobError: it cannot be read, is not YAML, or is not a valid job.
    """
    source = Path(path)
    folder = source.resolve().parent
    document = _with_huggingface_config(_load_yaml(source), folder, source=str(path))
    job = parse_job(document, source=str(path))
    return _resolve_paths(job, folder)


def parse_job(document: object, *, source: str = "") -> JobSpec:
    """Check a job given as plain values.

    Args:
        document: what a job file holds: nested mappings.
        source: the name of the file, for errors.

    Raises:
        InvalidJobError: names every field that is wrong and what would be right.
    """
    if not isinstance(document, Mapping):
        problem = "a job file is a set of fields (model, data, training, ...)"
        raise InvalidJobError([FieldProblem(field="", message=problem)], source=source)
    try:
        return JobSpec.model_validate(dict(document))
    except ValidationError as error:
        details = error.errors(include_url=False)
        # A misspelt field is both unknown and missing: tell the spelling first.
        details.sort(key=lambda detail: detail["type"] != "extra_forbidden")
        problems = [_problem(detail) for detail in details]
        raise InvalidJobError(problems, source=source) from None


def _problem(detail: ErrorDetails) -> FieldProblem:
    context = detail.get("ctx", {})
    location = [str(part) for part in detail["loc"]]
    section = location[:-1]
    if location[:1] == ["model"] and len(location) > 1:
        del location[1]  # which kind of model section
    if detail["type"] == "job_problem":
        field = ".".join([*location, str(context["field"])])
        return FieldProblem(field=field, message=str(context["text"]))
    field = ".".join(location)
    return FieldProblem(field=field, message=_explain(detail, section, context))


def _explain(detail: ErrorDetails, section: Sequence[str], context: Mapping[str, Any]) -> str:
    given = detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            return _unknown_field(section, str(detail["loc"][-1]))
        case "missing":
            if section == ["model", "family"] and detail["loc"][-1] == "family":
                return f"is missing; a model is given by one of {', '.join(MODEL_KINDS)}"
            return "is missing, and has no default"
        case "literal_error":
            return f"must be {context['expected']}, not {given!r}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}, not {given}"
        case "greater_than":
            return f"must be more than {context['gt']}, not {given}"
        case "less_than":
            return f"must be less than {context['lt']}, not {given}"
        case "less_than_equal":
            return f"must be at most {context['le']}, not {given}"
        case "finite_number":
            return f"must be a finite number, not {given}"
        case "int_type" | "int_parsing" | "int_from_float":
            return f"must be a whole number, not {given!r}"
        case "float_type" | "float_parsing":
            return f"must be a number, not {given!r}"
        case "bool_type" | "bool_parsing":
            return f"must be true or false, not {given!r}"
        case "string_type":
            return f"must be text, not {given!r}"
        case "string_too_short":
            return "must not be empty"
        case "string_pattern_mismatch" if section == ["model", "import_path"]:
            return f"must be module:function, not {given!r}"
        case "string_pattern_mismatch":
            return f"must be letters, digits, '.', '_' or '-' (at most 63), not {given!r}"
        case "dict_type" if section == ["model", "huggingface"]:
            return f"must be the contents of a config.json, not {given!r}"
        case "model_type" | "model_attributes_type":
            known = _usual_fields(_section([*section, str(detail["loc"][-1])]))
            return f"must be a group of fields ({known}), not {given!r}"
        case "dict_type":
            return f"must be a group of fields, not {given!r}"
        case _:
            return detail["msg"][:1].lower() + detail["msg"][1:]


def _unknown_field(section: Sequence[str], name: str) -> str:
    known = list(_section(section).model_fields)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if nearest:
        return f"unknown field; did you mean {nearest[0]}?"
    return f"unknown field; known here are {', '.join(known)}"


def _section(location: Sequence[str]) -> type[BaseModel]:
    """Return the class of the section at a path."""
    section: type[BaseModel] = JobSpec
    if location[:1] == ["model"]:
        return MODEL_KINDS[location[1]]
    for name in location:
        section = next(_groups(section, name))
    return section


def _groups(section: type[BaseModel], name: str) -> Iterator[type[BaseModel]]:
    """Yield the class of a field that is a group of fields; nothing for any other."""
    choices = _choices(section, name)
    return (c for c in choices if isinstance(c, type) and issubclass(c, BaseModel))


def _choices(section: type[BaseModel], name: str) -> tuple[object, ...]:
    """Return the types that a field may have; none for an unknown field."""
    if name not in section.model_fields:
        return ()
    annotation = section.model_fields[name].annotation
    choices: tuple[object, ...] = getattr(annotation, "__args__", (annotation,))
    return choices


class _UniqueKeyLoader(yaml.SafeLoader):
    """A field that is given twice is a mistake, not a choice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _load_yaml(path: Path) -> object:
    def refuse(message: str) -> InvalidJobError:
        return InvalidJobError([FieldProblem(field="", message=message)], source=str(path))

    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise refuse(f"cannot read the job file: {error.strerror}") from None
    if len(raw) > _MAX_BYTES:
        raise refuse(f"a job file has at most {_MAX_BYTES} bytes")
    try:
        loader = _UniqueKeyLoader(raw.decode("utf-8"))
        root = loader.get_single_node()
        document = None if root is None else loader.construct_document(root)
    except UnicodeDecodeError as error:
        raise refuse(f"is not UTF-8 text (byte {error.start})") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise refuse(f"{line}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise refuse(" ".join(str(error).split())) from None
    empty = list(_empty_groups(root, JobSpec))
    if empty:
        raise InvalidJobError(empty, source=str(path))
    return document


def _empty_groups(
    node: yaml.Node | None, section: type[BaseModel], prefix: str = ""
) -> Iterator[FieldProblem]:
    """Find groups of fields below whose name nothing is written.

    They read as null, which its author means as none. A name alone means that its fields
    were forgotten, or are commented out.
    """
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        for group in _groups(section, key.value):
            field = prefix + key.value
            yield from _empty_groups(value, group, f"{field}.")
            is_empty = isinstance(value, yaml.ScalarNode) and value.value == ""
            if is_empty and NoneType in _choices(section, key.value):
                known = _usual_fields(group)
                message = f"must be a group of fields ({known}); leave the line out for none"
                yield FieldProblem(field=field, message=message)


def _usual_fields(section: type[BaseModel]) -> str:
    """Return the names of a section's fields but for expert settings, with commas."""
    fields = section.model_fields.items()
    return ", ".join(name for name, field in fields if not is_expert(field))


def _with_huggingface_config(document: object, folder: Path, *, source: str) -> object:
    """Put a configuration in the place of its path: the coordinator plans from it at once."""
    if not isinstance(document, Mapping) or not isinstance(document.get("model"), Mapping):
        return document
    path = document["model"].get("huggingface")
    if not isinstance(path, str):
        return document
    file = Path(_resolve(path, folder))
    if file.is_dir():
        file /= "config.json"
    try:
        config = json.loads(file.read_bytes())
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}"
        raise InvalidJobError([_huggingface_problem(message)], source=source) from None
    except ValueError as error:
        message = f"{file} is not JSON: {error}"
        raise InvalidJobError([_huggingface_problem(message)], source=source) from None
    return {**document, "model": {**document["model"], "huggingface": config}}


def _huggingface_problem(message: str) -> FieldProblem:
    return FieldProblem(field="model.huggingface", message=message)


def _resolve(path: str, folder: Path) -> str:
    # Not Path.resolve: a pattern is not a file, and links mean what they mean on the nodes.
    return os.path.normpath(folder / Path(path).expanduser())


def _resolve_paths(job: JobSpec, folder: Path) -> JobSpec:
    def resolve(path: str) -> str:
        return _resolve(path, folder)

    tokenizer = job.data.tokenizer
    data = job.data.model_copy(
        update={
            "path": resolve(job.data.path),
            "tokenizer": tokenizer if tokenizer == "byte" else resolve(tokenizer),
        }
    )
    output = job.output and job.output.model_copy(update={"path": resolve(job.output.path)})
    checkpoint = job.checkpoint and job.checkpoint.model_copy(
        update={"path": resolve(job.checkpoint.path)}
    )
    evaluation = job.evaluation
    if evaluation is not None and evaluation.data is not None:
        text = evaluation.data.model_copy(update={"path": resolve(evaluation.data.path)})
        evaluation = evaluation.model_copy(update={"data": text})
    metrics = job.metrics
    if metrics is not None and metrics.tensorboard is not None:
        metrics = metrics.model_copy(update={"tensorboard": resolve(metrics.tensorboard)})
    init_from = job.init_from and resolve(job.init_from)
    return job.model_copy(
        update={
            "data": data,
            "init_from": init_from,
            "checkpoint": checkpoint,
            "evaluation": evaluation,
            "output": output,
            "metrics": metrics,
        }
    )
