"""Long computations report their progress."""

import random
import threading

import pytest

from planaria_planner.progress import Progress
from planaria_planner.templates import templates
from planaria_planner.templates.templates import generate_templates
from unit.planner.profiles import random_profile


def test_the_progress_of_a_long_search_grows_to_1() -> None:
    profile = random_profile(random.Random(1), num_layers=60)
    generate_templates.cache_clear()
    progress = Progress()

    def search() -> None:
        with progress.followed():
            generate_templates(profile, (60,))

    thread = threading.Thread(target=search)
    thread.start()
    fractions = [progress.fraction]
    while thread.is_alive():
        thread.join(0.001)
        fractions.append(progress.fraction)
    generate_templates.cache_clear()
    assert len(set(fractions)) > 2
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1


@pytest.mark.parametrize("most_work", [10**9, 0], ids=["mixed", "each_kind_alone"])
def test_the_template_search_of_several_kinds_ends_at_1(
    most_work: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "_MOST_WORK", most_work)
    profile = random_profile(random.Random(2), num_layers=5, accelerators=(1, 2))
    generate_templates.cache_clear()
    progress = Progress()
    with progress.followed():
        found = generate_templates(profile, (2, 2))
    generate_templates.cache_clear()
    assert found.mixes == (most_work > 0)
    assert progress.fraction == 1
