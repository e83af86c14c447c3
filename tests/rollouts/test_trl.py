"""A log that TRL's own trainer wrote, of a tiny model on the CPU: read, graded again, analysed."""

import os
from pathlib import Path
from typing import Any

import pytest

from observer_core.rewards import find_rewards, trl_reward
from observer_core.rollouts.features import extract
from observer_core.rollouts.findings import analyze
from observer_core.rollouts.reading import RolloutLog
from observer_core.rollouts.regrade import GradeOptions, regrade
from tests.rollouts.rewards_for_tests import shortness

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]
GENERATIONS = 8


def brevity(completions: list[Any], **columns: Any) -> list[float]:
    """A third of what TRL would call a reward function: not a float32 number."""
    return [1 / (3 + len(c)) for c in completions]


def vocabulary() -> list[str]:
    """Whole completions as single tokens, so that an untrained model writes some that can be read."""
    good = [
        f'{{"answer": "river {w}", "cited_artifacts": ["d{n}"], "confidence": 0.{n}}}'
        for n, w in enumerate("abcdefg", 1)
    ]
    bad = ['{"answer": "river', '{"answer": "a\nb", "cited_artifacts": [], "confidence": 0.5}', "no idea"]
    return ["<pad>", "<eos>", "<unk>", *good, *bad, *(f"Question {n}?" for n in range(4))]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The trainer's output folder and the prompts' data set."""
    pytest.importorskip("trl")
    os.environ["HF_HUB_OFFLINE"] = "1"
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
    from trl import GRPOConfig, GRPOTrainer

    set_seed(0)
    words = vocabulary()
    tokenizer = Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split("\x00", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            pad_token_id=0,
            eos_token_id=1,
        )
    )
    data = Dataset.from_list(
        [
            {"prompt": f"Question {n}?", "solution": f"river {w}", "citations": [f"d{n + 1}"]}
            for n, w in enumerate("abcd")
        ]
    )
    folder = tmp_path_factory.mktemp("trl") / "tiny-run"
    rewards = [
        trl_reward("format"),
        trl_reward("quality", reference="solution"),
        trl_reward("citation"),
        trl_reward("calibration", reference="solution"),
        trl_reward("parsimony"),
        trl_reward("repetition"),
        brevity,
        shortness,
    ]
    config = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=GENERATIONS,
        gradient_accumulation_steps=2,
        num_generations=GENERATIONS,
        max_completion_length=2,
        max_steps=6,
        logging_steps=1,
        log_completions=True,
        num_completions_to_print=0,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        seed=0,
    )
    GRPOTrainer(model=model, reward_funcs=rewards, args=config, train_dataset=data, processing_class=fast).train()
    data.to_parquet(folder / "prompts.parquet")
    return folder / "completions", folder / "prompts.parquet"


def test_a_real_log_is_read_and_grades_again_within_a_millionth(run: tuple[Path, Path], tmp_path: Path):
    log = RolloutLog(run[0], dataset=run[1])
    assert log.run == "tiny-run"
    assert set(log.rewards) == {
        *("format", "quality", "citation", "calibration", "parsimony", "repetition", "brevity", "shortness")
    }
    specs = ["format", "quality", "citation", "calibration", "parsimony", "repetition"]
    specs += ["brevity=tests.rollouts.test_trl:brevity", "shortness=tests.rollouts.rewards_for_tests:shortness"]
    result = regrade(log, find_rewards(specs), GradeOptions(workers=2), out=tmp_path / "out")
    assert log.problems.counts == {}
    assert (result.rows, len(result.steps)) == (6 * 2 * GENERATIONS, 6)
    assert result.failures == {}
    drift = result.fidelity.rewards
    assert {name: d.state_differs for name, d in drift.items()} == dict.fromkeys(drift, 0)
    assert max(d.max for d in drift.values()) < 1e-6
    assert result.fidelity.holds
    assert drift["brevity"].precision == "float32"
    assert 0 < drift["shortness"].rows < result.rows, "None in training is no score here, and the same rows"
    assert set(result.parse_errors) & {"text_after", "truncated", "raw_newline", "not_json"}
    assert result.parse_errors.total() < result.rows, "some completions could be read"


def test_groups_of_a_real_log_are_the_generations_of_a_prompt(run: tuple[Path, Path]):
    features = extract(RolloutLog(run[0], dataset=run[1]))
    sizes = [int((features.group == g).sum()) for g in range(int(features.group.max()) + 1)]
    assert sizes == [GENERATIONS] * 12
    analysis = analyze(features)
    assert analysis.to_json()["steps"] == 6
