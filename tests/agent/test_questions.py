import itertools
import json
from pathlib import Path

import pytest

from observer_core.errors import InputError
from observer_pipeline.agent.hotpot import read_hotpot
from observer_pipeline.agent.questions import AgentQuestion
from observer_pipeline.agent.world import generate_world
from observer_pipeline.agent.world_facts import MONTHS
from observer_pipeline.agent.world_names import stem

WORLD = list(generate_world(1500, seed=5))


def text_of(question: AgentQuestion, title: str) -> str:
    return next(p.text for p in question.paragraphs if p.title == title)


def size(value: str) -> tuple[int, ...]:
    day, month, year = value.split() if " " in value else ("0", MONTHS[0], value.replace(",", ""))
    return int(year), MONTHS.index(month), int(day)


def test_the_same_seed_gives_the_same_questions_wherever_one_starts() -> None:
    assert list(generate_world(40, seed=5, first=25)) == WORLD[25:40]
    assert next(generate_world(1, seed=6)) != WORLD[0]


def test_questions_are_unique_and_stems_never_repeat() -> None:
    assert len({q.question for q in WORLD}) == len({q.qid for q in WORLD}) == len(WORLD)
    names = {stem(i) for i in itertools.chain(range(60_000), range(430_000, 480_000), range(90_000_000, 90_010_000))}
    assert len(names) == 120_000


def test_every_fact_the_answer_hangs_on_stands_in_its_paragraph() -> None:
    for question in WORLD:
        assert len(question.paragraphs) == len({p.title for p in question.paragraphs}) == 10
        assert len(question.supporting_titles) >= 2
        for fact in question.facts:
            assert fact.value in text_of(question, fact.title)
            assert fact.value not in fact.alternatives
        for title, index in question.supporting:
            assert index < len(next(p for p in question.paragraphs if p.title == title).sentences)


def test_bridge_answers_follow_from_the_chain() -> None:
    """Each hop's value leads to the next supporting paragraph, and the last holds the answer."""
    bridges = [q for q in WORLD if q.type == "bridge"]
    for question in bridges:
        for here, following in itertools.pairwise(question.facts):
            assert text_of(question, following.title).removeprefix("The ").startswith(here.value)
        assert question.answer in question.facts[-1].value
        assert question.facts[-1].title not in question.question  # it takes the hop to know where to look
    assert len(bridges) > 800


def test_comparison_answers_follow_from_both_values() -> None:
    for question in (q for q in WORLD if q.type == "comparison"):
        first, second = question.facts
        if question.answer in ("yes", "no"):
            assert (first.value == second.value) == (question.answer == "yes")
            continue
        assert question.answer in text_of(question, first.title)
        # An alternative value would turn the answer round.
        before = size(first.value) > size(second.value)
        assert all((size(false) > size(second.value)) != before for false in first.alternatives)


def test_surface_form_gives_no_answer_away() -> None:
    yes_no = [q.answer for q in WORLD if q.answer in ("yes", "no")]
    assert 0.35 < yes_no.count("yes") / len(yes_no) < 0.65
    choices = [q for q in WORLD if q.type == "comparison" and q.answer not in ("yes", "no")]
    first_named = sum((q.aliases or (q.answer,))[0] in q.question.split(" or ")[0] for q in choices)
    assert 0.4 < first_named / len(choices) < 0.6
    positions = [[p.title for p in q.paragraphs].index(q.facts[-1].title) for q in WORLD]
    assert all(0.06 < positions.count(place) / len(WORLD) < 0.14 for place in range(10))
    # No answer is frequent enough to be worth guessing.
    answers = [q.answer for q in WORLD if q.type == "bridge"]
    assert max(answers.count(a) for a in set(answers)) / len(answers) < 0.02


def test_variety() -> None:
    assert {q.level for q in WORLD} == {"easy", "medium", "hard"}
    openings = {" ".join(q.question.split()[:2]) for q in WORLD}
    assert len(openings) > 40
    near = [
        q
        for q in WORLD
        if any(
            a != b and a.split()[-1] == b.split()[-1]
            for a, b in itertools.combinations([p.title for p in q.paragraphs], 2)
        )
    ]
    assert len(near) > 500


def test_official_records_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "world.json"
    path.write_text(json.dumps([q.to_hotpot() for q in WORLD[:20]]), encoding="utf-8")
    for read, made in zip(read_hotpot(path), WORLD[:20], strict=True):
        for name in ("qid", "question", "answer", "type", "level", "paragraphs", "supporting"):
            assert getattr(read, name) == getattr(made, name)


def test_the_hubs_parquet(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    records = [q.to_hotpot() for q in WORLD[:5]]
    for record in records:
        record["id"] = record.pop("_id")
        titles, sentences = zip(*record["context"], strict=True)
        record["context"] = {"title": list(titles), "sentences": list(sentences)}
        names, indices = zip(*record["supporting_facts"], strict=True)
        record["supporting_facts"] = {"title": list(names), "sent_id": list(indices)}
    path = tmp_path / "part.parquet"
    datasets.Dataset.from_list(records).to_parquet(str(path))
    assert [(q.qid, q.paragraphs, q.supporting) for q in read_hotpot(path)] == [
        (q.qid, q.paragraphs, q.supporting) for q in WORLD[:5]
    ]


def test_real_hotpotqa_files(shared_data: Path) -> None:
    with_corpus = read_hotpot(shared_data / "hotpotqa/questions.jsonl")
    assert len(with_corpus) == 1251
    official = read_hotpot(shared_data / "hotpotqa/hotpotqa_300_distractor.jsonl")
    assert len(official) == 300
    assert set(official[0].supporting_titles) <= {p.title for p in official[0].paragraphs}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("q.json", "[", "not JSON"),
        ("q.json", "{}", "must hold a list"),
        ("q.json", "[]", "holds no questions"),
        ("q.jsonl", '{"question": "a?", "answer": "b", "context": [["T", ["x"]]]}\n{"question"', "q.jsonl:2: not JSON"),
        ("q.json", '[{"answer": "b", "context": []}]', "q.json[0]: field 'question' must be of type str"),
        ("q.json", '[{"question": "a?", "answer": "b", "context": [["T"]]}]', "cannot be used"),
        ("q.json", '[{"question": "a?", "answer": "b", "context": []}]', "at least one paragraph"),
        ("q.json", '[{"question": "a?", "answer": "b", "context_titles": ["T"]}]', "corpus.jsonl does not exist"),
    ],
)
def test_unusable_files_say_where_and_what(tmp_path: Path, name: str, content: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_hotpot(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
