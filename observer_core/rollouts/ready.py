"""Ready-made questions to the stored spans: a name, what it answers, SQL over the views of `store`, and its
parameters.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Question:
    """`parameters` are bound by name (`$step`), never pasted into the SQL; their values here are the defaults."""

    asks: str
    sql: str
    parameters: dict[str, float] = field(default_factory=dict)


QUESTIONS: dict[str, Question] = {
    "rewards_by_step": Question(
        "How does each reward move over the run?",
        """SELECT step, reward, avg(score) AS mean, stddev_samp(score) AS std, count(score) AS scored
           FROM rewards GROUP BY ALL ORDER BY step, reward""",
    ),
    "overconfident_and_bad": Question(
        "Which completions were sure of themselves and bad, and on which tasks?",
        """SELECT task_id, count(*) AS completions, avg(confidence) AS confidence, avg(score) AS quality,
        list(step)[:5] AS steps
           FROM completion_rewards
           WHERE reward ILIKE '%quality%' AND confidence >= $confidence AND score < $quality
           GROUP BY task_id ORDER BY completions DESC""",
        {"confidence": 0.8, "quality": 0.25},
    ),
    "parse_errors": Question(
        "How do completions fail to be read, and in which steps?",
        """SELECT parse_error, parse_error_at, count(*) AS completions, min(step) AS first_step, max(step) AS last_step
           FROM completions WHERE parse_error IS NOT NULL GROUP BY ALL ORDER BY completions DESC""",
    ),
    "zero_scores_and_parse_errors": Question(
        "Are zero scores parse failures or bad answers, step by step?",
        """SELECT step, count(*) FILTER (score = 0 AND parse_error IS NOT NULL) AS zero_unread,
                  count(*) FILTER (score = 0 AND parse_error IS NULL) AS zero_read, count(*) AS scores
           FROM completion_rewards GROUP BY step HAVING zero_unread + zero_read > 0 ORDER BY step""",
    ),
    "rewarded_though_bad": Question(
        "Which completions did the optimiser reward though they are bad?",
        """SELECT step, task_id, "row", advantage, score AS quality, confidence, hack_signature, left(completion, 200)
        AS completion
           FROM completion_rewards
           WHERE reward ILIKE '%quality%' AND advantage > $advantage AND score < $quality ORDER BY advantage DESC""",
        {"advantage": 1.0, "quality": 0.25},
    ),
    "hack_signatures": Question(
        "Which exploits are seen, and how often per thousand completions?",
        """SELECT signature, count(*) AS completions,
                  1000 * count(*) / (SELECT count(*) FROM completions) AS per_thousand,
                  min(step) AS first_step, max(step) AS last_step
           FROM (SELECT step, unnest(string_split(hack_signature, ',')) AS signature FROM completions)
           GROUP BY signature ORDER BY completions DESC""",
    ),
    "flat_groups": Question(
        "Which steps gave no gradient, because all completions of a prompt scored the same?",
        """SELECT step, prompt[:80] AS prompt, count(DISTINCT span_id) AS completions, avg(total) AS total
           FROM (SELECT step, prompt, span_id, sum(score) AS total FROM completion_rewards GROUP BY ALL)
           GROUP BY step, prompt HAVING count(*) > 1 AND stddev_pop(total) < 1e-9 ORDER BY step""",
    ),
    "confidence_habits": Question(
        "Which stated confidences come again and again?",
        """SELECT confidence, count(*) AS completions, count(*) / sum(count(*)) OVER () AS share,
                  min(step) AS first_step, max(step) AS last_step
           FROM completions WHERE confidence IS NOT NULL GROUP BY confidence ORDER BY completions DESC LIMIT 20""",
    ),
    "worst_tasks": Question(
        "On which tasks do completions score worst?",
        """SELECT task_id, reward, avg(score) AS mean, count(score) AS scored FROM completion_rewards
           GROUP BY task_id, reward
           QUALIFY row_number() OVER (PARTITION BY reward ORDER BY mean) <= 5 ORDER BY reward, mean""",
    ),
    "length_and_reward": Question(
        "Are longer completions paid more?",
        """SELECT reward, corr(length, score) AS correlation, count(score) AS scored
           FROM completion_rewards GROUP BY reward ORDER BY correlation DESC NULLS LAST""",
    ),
    "reward_failures": Question(
        "Which rewards raised or hung?",
        """SELECT reward, error, count(*) AS calls, min(step) AS first_step, max(step) AS last_step
           FROM rewards WHERE error IS NOT NULL GROUP BY ALL ORDER BY calls DESC""",
    ),
    "slowest_rewards": Question(
        "What does grading cost, per reward?",
        """SELECT reward, count(*) AS calls, avg(duration_ms) AS mean_ms, quantile_cont(duration_ms, 0.95) AS p95_ms
           FROM rewards GROUP BY reward ORDER BY mean_ms DESC""",
    ),
    "drift": Question(
        "Where does grading again not give the logged score?",
        """SELECT reward, step, "row", logged_score, score, abs(score - logged_score) AS difference
           FROM completion_rewards WHERE abs(score - logged_score) > $difference ORDER BY difference DESC""",
        {"difference": 1e-6},
    ),
}
