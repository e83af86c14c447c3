"""Rewards: the built-in ones, a user's own, and how they run over rows (timed, exceptions recorded, hangs ended)."""

from observer_core.rewards.completion import Completion, ParseError, read_completion
from observer_core.rewards.registry import Reward, builtin_rewards, find_reward, find_rewards, known_rewards, trl_reward
from observer_core.rewards.rouge import rouge_l

__all__ = [
    "Completion",
    "ParseError",
    "Reward",
    "builtin_rewards",
    "find_reward",
    "find_rewards",
    "known_rewards",
    "read_completion",
    "rouge_l",
    "trl_reward",
]
