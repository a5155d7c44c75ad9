"""Labels of a node, as an agent is given them."""

import pytest

from planaria_common.errors import InvalidArgumentError
from planaria_common.settings import load_settings
from planaria_worker.agent.settings import WorkerSettings


def labels(*options: str) -> dict[str, str]:
    arguments = ["--coordinator", "unused:1", *options]
    return load_settings(WorkerSettings, program="planaria-worker", arguments=arguments).labels


@pytest.mark.parametrize(
    "options", [("--label", "rack=r1,zone=b"), ("--label", "rack=r1", "--label", "zone=b")]
)
def test_labels_are_given_in_one_option_or_several(options: tuple[str, ...]) -> None:
    assert labels(*options) == {"rack": "r1", "zone": "b"}


@pytest.mark.parametrize(
    ("label", "words"),
    [("rack", "must be key=value"), ("=x", "must be key=value"), ("a=1,a=2", "given 2 times")],
)
def test_what_is_no_label_is_refused(label: str, words: str) -> None:
    """The error names the option."""
    with pytest.raises(InvalidArgumentError, match=words) as error:
        labels("--label", label)
    assert error.value.metadata["field"] == "--label"
