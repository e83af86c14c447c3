from pathlib import Path

import pyarrow.parquet as pq
import pytest

from observer_core.rollouts.story import Story, story_log


@pytest.fixture(scope="session")
def story() -> Story:
    return story_log(7)


@pytest.fixture(scope="session")
def story_path(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("story") / "run-7.parquet"
    pq.write_table(story.table, path)
    return path
