"""Text to microbatches: what users may rely on about their data."""

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from planaria_worker.engine.data.dataset import Dataset, open_dataset
from planaria_worker.engine.data.errors import DataError
from planaria_worker.engine.data.files import content_hash, matching_files
from planaria_worker.engine.data.order import KeyedPermutation, SampleOrder

TEXT = b"A planarian, cut into pieces, regrows from each of them.\n" * 20


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "b.txt").write_bytes(TEXT[:100])
    (folder / "a.txt").write_bytes(TEXT)
    return folder


def _open(corpus: Path, **changes: object) -> Dataset:
    arguments: dict[str, object] = {
        "pattern": str(corpus / "*.txt"),
        "tokenizer": "byte",
        "cache_dir": corpus.parent / "cache",
        "sequence_length": 16,
        "vocab_size": 256,
    }
    return open_dataset(**{**arguments, **changes})  # type: ignore[arg-type]


def _word_tokenizer(path: Path, vocab: dict[str, int]) -> str:
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    return str(path)


def test_bytes_are_tokens_and_files_follow_in_sorted_order(corpus: Path) -> None:
    dataset = _open(corpus)
    assert dataset.file.tokens.tobytes() == TEXT + TEXT[:100]
    assert dataset.file.tokens.dtype == np.uint8


def test_each_sequence_continues_where_the_last_one_ended(corpus: Path) -> None:
    dataset = _open(corpus)
    rows = dataset.rows([0, 1])
    assert rows.dtype == np.int64
    assert rows.shape == (2, 17)
    assert bytes(rows[0].tolist()) == TEXT[:17]
    assert bytes(rows[1].tolist()) == TEXT[16:33]
    assert dataset.num_sequences == (len(TEXT) + 100 - 1) // 16
    assert dataset.rows([dataset.num_sequences - 1]).shape == (1, 17)


def test_the_token_file_is_made_once(corpus: Path) -> None:
    made = _open(corpus).file.path.stat()
    again = _open(corpus).file.path.stat()
    assert (made.st_ino, made.st_mtime_ns) == (again.st_ino, again.st_mtime_ns)


def test_changed_text_or_tokenizer_makes_another_token_file(corpus: Path, tmp_path: Path) -> None:
    first = _open(corpus).file.path
    (corpus / "b.txt").write_bytes(TEXT[:99])
    second = _open(corpus).file.path
    words = _word_tokenizer(tmp_path / "tokenizer.json", {"?": 0, "cut": 1})
    third = _open(corpus, tokenizer=words).file.path
    assert len({first, second, third}) == 3


def test_many_at_once_get_the_same_whole_file(corpus: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        datasets = list(pool.map(lambda _: _open(corpus), range(16)))
    assert {dataset.file.path for dataset in datasets} == {datasets[0].file.path}
    assert all(dataset.file.tokens.tobytes() == TEXT + TEXT[:100] for dataset in datasets)
    assert not list(datasets[0].file.path.parent.glob(".tokens-*"))


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 6000])
def test_a_damaged_token_file_is_made_again(corpus: Path, damage: bytes) -> None:
    path = _open(corpus).file.path
    path.write_bytes(damage)
    assert _open(corpus).file.tokens.tobytes() == TEXT + TEXT[:100]


def test_a_hugging_face_tokenizer_gives_its_ids(corpus: Path, tmp_path: Path) -> None:
    vocab = {"?": 0, "cut": 1, "into": 2, "pieces": 300}
    words = _word_tokenizer(tmp_path / "tokenizer.json", vocab)
    dataset = _open(corpus, tokenizer=words, vocab_size=301)
    assert dataset.file.tokens.dtype == np.uint16
    assert dataset.file.tokens[:8].tolist() == [0, 0, 0, 1, 2, 300, 0, 0]


def test_the_content_hash_depends_on_contents_and_not_on_paths(
    corpus: Path, tmp_path: Path
) -> None:
    here = matching_files(str(corpus / "*.txt"))
    other = tmp_path / "elsewhere"
    other.mkdir()
    for path in here:
        (other / path.name).write_bytes(path.read_bytes())
    assert content_hash(here) == content_hash(matching_files(str(other / "*.txt")))
    assert content_hash(here) != content_hash(here[:1])
    (other / "a.txt").write_bytes(TEXT + TEXT[:1])
    (other / "b.txt").write_bytes(TEXT[1:100])
    assert content_hash(here) != content_hash(matching_files(str(other / "*.txt")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pattern": "/nowhere/*.txt"}, r"data\.path: no file matches /nowhere/\*\.txt"),
        (
            {"sequence_length": 5000},
            r"data\.sequence_length: data\.path has 1240 tokens, .* needs 5001",
        ),
        ({"vocab_size": 100}, r"model\.vocab_size: 100, but data\.path has token 119"),
        ({"tokenizer": "/nowhere.json"}, r"data\.tokenizer: /nowhere\.json is neither"),
        (
            {"pattern": "/nowhere/*.txt", "field": "evaluation.data.path"},
            r"^evaluation\.data\.path: no file matches /nowhere/\*\.txt",
        ),
        (
            {"sequence_length": 5000, "field": "evaluation.data.path"},
            r"^data\.sequence_length: evaluation\.data\.path has 1240 tokens",
        ),
    ],
)
def test_wrong_data_is_reported_in_one_line(
    corpus: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=message) as error:
        _open(corpus, **changes)
    assert "\n" not in str(error.value)


def test_a_directory_is_answered_with_the_pattern_to_use(corpus: Path) -> None:
    with pytest.raises(
        DataError, match=r"^data\.path: .* is a directory; give a pattern, .*/\*\.txt"
    ):
        _open(corpus, pattern=str(corpus))


def test_a_file_that_is_no_tokenizer_is_named(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"no": "tokenizer"}))
    with pytest.raises(DataError, match=r"data\.tokenizer: .*tokenizer\.json is not a"):
        _open(corpus, tokenizer=str(path))


def test_text_that_is_not_utf8_names_the_byte_tokenizer(corpus: Path, tmp_path: Path) -> None:
    words = _word_tokenizer(tmp_path / "tokenizer.json", {"?": 0})
    (corpus / "a.txt").write_bytes(b"\xff\xfe" * 50)
    with pytest.raises(DataError, match=r"^data\.path: not UTF-8 text"):
        _open(corpus, tokenizer=words)
    assert not list((tmp_path / "cache").glob(".tokens-*"))


def test_the_agent_can_hash_data_without_torch() -> None:
    code = (
        "import sys, planaria_worker.engine.data.files, planaria_worker.engine.data.dataset;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(st.integers(1, 700), st.integers(0, 2**128 - 1))
def test_the_permutation_hits_every_position_once(size: int, key: int) -> None:
    permutation = KeyedPermutation(size, key)
    assert sorted(map(permutation, range(size))) == list(range(size))


def test_the_permutation_looks_shuffled() -> None:
    """Displacement of a random permutation of n averages n/3; its longest run is short."""
    size = 10_000
    image = [KeyedPermutation(size, 12345)(position) for position in range(size)]
    displacement = sum(abs(a - b) for a, b in enumerate(image)) / size
    assert 0.32 * size < displacement < 0.35 * size
    assert sum(b == a + 1 for a, b in pairwise(image)) < 10


@given(
    st.integers(1, 60),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 2**63 - 1),
    st.integers(0, 40),
)
def test_every_pass_holds_every_sequence_once(
    num_sequences: int, num_microbatches: int, microbatch_size: int, seed: int, skip: int
) -> None:
    order = SampleOrder(
        num_sequences=num_sequences,
        num_microbatches=num_microbatches,
        microbatch_size=microbatch_size,
        seed=seed,
    )
    per_step = num_microbatches * microbatch_size
    num_steps = -(-3 * num_sequences // per_step)
    samples = [
        sequence
        for step in range(num_steps)
        for index in range(num_microbatches)
        for sequence in order.microbatch(step, index)
    ]
    for number in range(3):
        one_pass = samples[number * num_sequences : (number + 1) * num_sequences]
        assert Counter(one_pass) == Counter(range(num_sequences))


def test_passes_and_seeds_are_shuffled_differently() -> None:
    def first_pass(seed: int, step: int) -> tuple[int, ...]:
        order = SampleOrder(num_sequences=64, num_microbatches=1, microbatch_size=64, seed=seed)
        return order.microbatch(step, 0)

    assert len({first_pass(7, 0), first_pass(7, 1), first_pass(8, 0)}) == 3


def test_the_order_of_samples_never_changes() -> None:
    """A job resumed by a later version must see the same data: this is a fixed point."""
    order = SampleOrder(num_sequences=1000, num_microbatches=4, microbatch_size=2, seed=7)
    assert [order.microbatch(3, index) for index in range(4)] == [
        (952, 713),
        (700, 306),
        (353, 888),
        (945, 461),
    ]
