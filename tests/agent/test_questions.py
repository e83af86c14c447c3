import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from observer_core.errors import InputError
from observer_pipeline.agent.faults.values import kind_of
from observer_pipeline.agent.questions import AgentQuestion
from observer_pipeline.agent.sources import read_question_file, read_questions
from observer_pipeline.agent.world import generate_world
from observer_pipeline.agent.world_facts import MONTHS
from observer_pipeline.agent.world_names import stem
from observer_pipeline.agent.world_piece import STEMS_PER_QUESTION

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


def test_no_letter_tells_the_place_of_a_name_in_its_question() -> None:
    """Names are made in an order, the asked-for first; their letters must not show it."""
    for letters in (slice(0, 1), slice(1, 2), slice(-2, None)):
        alike = {
            slot: Counter(stem(slot + STEMS_PER_QUESTION * question)[letters] for question in range(3000))
            for slot in range(12)
        }
        whole = sum(alike.values(), Counter())
        for counts in alike.values():
            far = sum((counts[part] - n / 12) ** 2 / (n / 12) for part, n in whole.items())
            assert far < 2 * len(whole) + 20  # chi-square with about as many degrees of freedom


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
    shapes = Counter()
    for question in (q for q in WORLD if q.type == "comparison"):
        first, second = question.facts
        kind = kind_of(question.answer)
        if kind in ("number", "year"):
            shapes["calculate"] += 1
            a, b = size(first.value)[0], size(second.value)[0]
            assert question.answer.replace(",", "") in (str(a - b), str(a + b))
            assert a > b
            continue
        more = re.search(r"\b(than|before|after)\b", question.question)
        shapes["compare" if kind == "name" else "more" if more else "same"] += 1
        if kind == "closed" and not more:
            assert (first.value == second.value) == (question.answer == "yes")
            continue
        if kind == "name":
            assert question.answer in text_of(question, first.title)
        else:
            asks_smaller = re.search(r"\b(fewer|less|shorter|older|earlier|before)\b", question.question)
            assert ((size(first.value) < size(second.value)) == bool(asks_smaller)) == (question.answer == "yes")
        # An alternative value would turn the answer round.
        before = size(first.value) > size(second.value)
        assert all((size(false) > size(second.value)) != before for false in first.alternatives)
    assert min(shapes[shape] for shape in ("calculate", "compare", "more", "same")) > 80


def test_surface_form_gives_no_answer_away() -> None:
    yes_no = [q.answer for q in WORLD if q.answer in ("yes", "no")]
    assert 0.35 < yes_no.count("yes") / len(yes_no) < 0.65
    choices = [q for q in WORLD if q.type == "comparison" and kind_of(q.answer) == "name"]
    first_named = sum((q.aliases or (q.answer,))[0] in q.question.split(" or ")[0] for q in choices)
    assert 0.4 < first_named / len(choices) < 0.6
    positions = [[p.title for p in q.paragraphs].index(q.facts[-1].title) for q in WORLD]
    assert all(0.06 < positions.count(place) / len(WORLD) < 0.14 for place in range(10))
    # No answer is frequent enough to be worth guessing.
    answers = [q.answer for q in WORLD if q.type == "bridge"]
    assert max(answers.count(a) for a in set(answers)) / len(answers) < 0.02


def test_what_a_question_can_be_taken_for_is_another_question() -> None:
    others = [(q.question, other) for q in WORLD for other in (q.sibling, q.skipped_hop) if other]
    assert len(others) > 1500
    assert all(question != other and other[0].isupper() and other.endswith("?") for question, other in others)


def test_variety() -> None:
    assert {q.level for q in WORLD} == {"easy", "medium", "hard"}
    namesakes = [q for q in WORLD if any(f"({kind})" in p.title for p in q.paragraphs for kind in ("painter", "film"))]
    assert len(namesakes) > 40
    assert sum(not q.question.endswith("?") or ": " in q.question for q in WORLD) > 100
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
    for read, made in zip(read_question_file(path), WORLD[:20], strict=True):
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
    assert [(q.qid, q.paragraphs, q.supporting) for q in read_question_file(path)] == [
        (q.qid, q.paragraphs, q.supporting) for q in WORLD[:5]
    ]


def test_real_hotpotqa_files(shared_data: Path) -> None:
    with_corpus = read_question_file(shared_data / "hotpotqa/questions.jsonl")
    assert len(with_corpus) == 1251
    official = read_question_file(shared_data / "hotpotqa/hotpotqa_300_distractor.jsonl")
    assert len(official) == 300
    assert set(official[0].supporting_titles) <= {p.title for p in official[0].paragraphs}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("q.json", "[", "not JSON"),
        ("q.json", "{}", "must hold a list"),
        ("q.json", "[]", "holds no questions"),
        ("q.jsonl", '{"question": "a?", "answer": "b", "context": [["T", ["x"]]]}\n{"question"', "q.jsonl:2: not JSON"),
        ("q.json", '[{"answer": "b", "context": []}]', "q.json[0]: field 'question': expected a text, not NoneType"),
        ("q.json", '[{"question": "a\\ud800?", "answer": "b", "paragraphs": ["x"]}]', "no character at 1"),
        ("q.json", '[{"question": "a?", "answer": " ", "paragraphs": ["x"]}]', "needs a question, an answer"),
        ("q.json", '[{"question": "a?", "answer": "b", "paragraphs": "some text"}]', "expected a list, not str"),
        ("q.json", '[{"question": "a?", "answer": "b", "context": [["T", "some text"]]}]', "expected a list, not str"),
        (
            "q.json",
            '[{"question": "a?", "answer": "b", "context": [["T", ["x"]]], "supporting_facts": [["T", -3]]}]',
            "0 or more, not -3",
        ),
        (
            "q.jsonl",
            '{"_id": 1, "question": "a?", "answer": "b", "paragraphs": ["x"]}\n' * 2,
            "1 ids belong to several questions, such as '1'",
        ),
        ("q.json", '[{"question": "a?", "answer": "b", "context": [["T"]]}]', "cannot be used"),
        ("q.json", '[{"question": "a?", "answer": "b", "context": []}]', "at least one paragraph"),
        ("q.json", '[{"question": "a?", "answer": "b", "context_titles": ["T"]}]', "corpus.jsonl does not exist"),
        ("q.json", '[{"question": "a?", "answer": "b", "paragraphs": [{"title": "T"}]}]', "cannot be used"),
        (
            "q.json",
            '[{"question": "a?", "answer": "b", "paragraphs": ["x"], "aliases": "c"}]',
            "'aliases' must be a list",
        ),
    ],
)
def test_unusable_files_say_where_and_what(tmp_path: Path, name: str, content: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_question_file(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_any_jsonl_of_question_answer_and_paragraphs(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    record = {
        "question": "Who?",
        "answer": "Ada",
        "aliases": ["A."],
        "paragraphs": ["Ada did.", {"title": "T", "text": "x"}],
    }
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    [question] = read_questions(str(path))
    assert (question.qid, question.question, question.answer) == ("mine.jsonl:1", "Who?", "Ada")
    assert question.aliases == ("A.",)
    assert [(p.title, p.text) for p in question.paragraphs] == [("paragraph 1", "Ada did."), ("T", "x")]
    # As Windows writes it: a byte order mark, carriage returns, blank lines.
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(record).encode() + b"\r\n\r\n")
    assert read_questions(str(path)) == [question]


@pytest.mark.parametrize(
    ("source", "says"), [("hub:distractor", "write hub:"), ("hub:distractor/validation", "cannot fetch")]
)
def test_without_a_hub_the_error_says_so(tmp_path: Path, source: str, says: str) -> None:
    """A process of its own, since `datasets` reads its switches when it is imported."""
    code = f"from observer_pipeline.agent.sources import read_questions; read_questions({source!r})"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "InputError" in done.stderr
    assert says in done.stderr
