"""Where questions come from: HotpotQA's files or its hub, and any JSONL of question, answer and paragraphs."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from observer_core.errors import InputError
from observer_core.traces.jsonl import parse_json
from observer_pipeline.agent.questions import AgentQuestion, Paragraph

HUB = "hub:"
HUB_NAME = "hotpotqa/hotpot_qa"
HUB_CONFIGS = ("distractor", "fullwiki")
CORPUS_NAME = "corpus.jsonl"
"""A file of `{title, text}` beside a question file; it holds the paragraphs that `context_titles` name."""


def read_questions(source: str) -> list[AgentQuestion]:
    """The questions of a file (see `read_question_file`) or of HotpotQA's hub.

    Args:
        source: a path, or `hub:distractor/validation` (`hub:fullwiki/…`), which `datasets` fetches or has fetched.

    Raises:
        InputError: unreadable, or a record that cannot be used; names the record and the field.
    """
    return _read_hub(source) if source.startswith(HUB) else read_question_file(Path(source))


def _read_hub(source: str) -> list[AgentQuestion]:
    config, _, split = source.removeprefix(HUB).partition("/")
    if config not in HUB_CONFIGS or not split:
        raise InputError(f"{source!r} is no HotpotQA set; write hub:distractor/validation or hub:fullwiki/validation")
    import datasets

    try:
        records = datasets.load_dataset(HUB_NAME, config, split=split)
    except (OSError, ValueError) as error:  # what datasets raises without a hub, a cache, or such a split
        said = " ".join(str(error).split())
        raise InputError(f"cannot fetch {source}: {said}; give one of HotpotQA's files instead") from error
    return _all_different([_question(f"{source}[{i}]", record, {}) for i, record in enumerate(records)], source)


def read_question_file(path: Path, *, corpus: Path | None = None) -> list[AgentQuestion]:
    """Read questions: HotpotQA's official files (distractor or fullwiki), or any records with paragraphs.

    A record has `question`, `answer`, and either HotpotQA's `context` (`[[title, [sentence, …]], …]`), or `paragraphs`
    (texts, or objects with `title` and `text`), or `context_titles` into a corpus file. Optional: `_id` or `id`,
    `aliases`, `type` (`comparison`), `level`, `supporting_facts` (`[[title, sentence index], …]`), `supporting_titles`.

    Args:
        path: `.json` (a list of records), `.jsonl` (one record a line) or `.parquet` (the hub's files, where context
            and supporting facts are columns of lists).
        corpus: for records that name their paragraphs by `context_titles`; `corpus.jsonl` beside `path` when not given.

    Raises:
        InputError: unreadable, or a record that cannot be used; names the record and the field.
    """
    records = list(_records(path))
    if not records:
        raise InputError(f"{path} holds no questions; give a HotpotQA file")
    texts: dict[str, str] = {}
    if any(isinstance(record, dict) and not record.keys() & {"context", "paragraphs"} for _, record in records):
        texts = _read_corpus(corpus or path.with_name(CORPUS_NAME))
    return _all_different([_question(place, record, texts) for place, record in records], str(path))


def _all_different(questions: list[AgentQuestion], source: str) -> list[AgentQuestion]:
    """Refuse an id that two questions have: a run's fault, and in a reproducible batch its trace id, come from it."""
    twice = [qid for qid, count in Counter(question.qid for question in questions).items() if count > 1]
    if twice:
        raise InputError(f"{source}: {len(twice)} ids belong to several questions, such as {twice[0]!r}; mend '_id'")
    return questions


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """The raw records with the place of each, for error messages."""
    if path.suffix == ".parquet":
        yield from _parquet_records(path)
        return
    if path.suffix == ".jsonl":
        yield from _json_lines(path)
        return
    try:
        records = parse_json(_read_text(path))
    except ValueError as error:
        raise InputError(
            f"{path} is not JSON ({error}); give an official HotpotQA file, or name JSONL .jsonl"
        ) from error
    if not isinstance(records, list):
        raise InputError(f"{path} must hold a list of questions; give an official HotpotQA file")
    for number, record in enumerate(records):
        yield f"{path}[{number}]", record


def _parquet_records(path: Path) -> Iterator[tuple[str, Any]]:
    if not path.is_file():
        raise InputError(f"cannot read {path}: no such file; give a HotpotQA file")
    from datasets import Dataset

    for number, record in enumerate(Dataset.from_parquet(str(path))):
        yield f"{path} row {number}", record


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        if line.strip():
            try:
                yield f"{path}:{number}", parse_json(line)
            except ValueError as error:
                raise InputError(f"{path}:{number}: not JSON: {error}; mend the line") from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # Windows programs put a byte order mark first
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; give a HotpotQA file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}); give a HotpotQA file") from error


def _read_corpus(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise InputError(f"the questions have no context and {path} does not exist; pass the corpus file")
    texts = {}
    for place, record in _json_lines(path):
        texts[_field(place, record, "title")] = _field(place, record, "text")
    return texts


def _field(place: str, record: Any, name: str) -> str:
    if not isinstance(record, dict):
        raise InputError(f"{place}: must be a JSON object; mend the record")
    try:
        return _text(record.get(name))
    except (TypeError, ValueError) as error:
        raise InputError(f"{place}: field '{name}': {error}; mend the record") from error


def _question(place: str, record: Any, texts: dict[str, str]) -> AgentQuestion:
    question = _field(place, record, "question").strip()
    answer = _field(place, record, "answer").strip()
    try:
        paragraphs = _paragraphs(record, texts)
        supporting = _supporting(record)
    except (KeyError, TypeError, ValueError) as error:
        missing = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"{place}: paragraphs, context or supporting facts cannot be used ({missing}); mend the record"
        ) from error
    if not question or not answer or not paragraphs:
        raise InputError(f"{place}: needs a question, an answer and at least one paragraph; mend the record")
    return AgentQuestion(
        qid=str(record.get("_id") or record.get("id") or Path(place).name),
        question=question,
        answer=answer,
        type="comparison" if record.get("type") == "comparison" else "bridge",
        level=str(record.get("level") or "unknown"),
        paragraphs=paragraphs,
        supporting=supporting,
        aliases=_texts(place, record, "aliases"),
    )


def _texts(place: str, record: dict[str, Any], name: str) -> tuple[str, ...]:
    try:
        return tuple(map(_text, _listed(record.get(name) or ())))
    except (TypeError, ValueError) as error:
        raise InputError(f"{place}: field '{name}' must be a list of texts ({error}); mend the record") from error


def _paragraphs(record: dict[str, Any], texts: dict[str, str]) -> tuple[Paragraph, ...]:
    context = record.get("context")
    if context is None and "paragraphs" in record:
        return tuple(_paragraph(number, item) for number, item in enumerate(_listed(record["paragraphs"])))
    if context is None:
        return tuple(Paragraph(title, (texts[title],)) for title in _listed(record["context_titles"]) if title in texts)
    pairs = zip(context["title"], context["sentences"], strict=True) if isinstance(context, dict) else _listed(context)
    return tuple(Paragraph(_text(title), tuple(map(_text, _listed(sentences)))) for title, sentences in pairs)


def _paragraph(number: int, item: Any) -> Paragraph:
    """A paragraph of the free form; a bare text has a number for a title."""
    if isinstance(item, dict):
        return Paragraph(_text(item["title"]), (_text(item["text"]),))
    return Paragraph(f"paragraph {number + 1}", (_text(item),))


def _listed(value: Any) -> Sequence[Any]:
    """A list, and no text: its letters would do as titles or sentences."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"expected a list, not {type(value).__name__}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can hold half of a surrogate pair, a file cannot
        raise ValueError(f"the text has no character at {error.start}") from error
    return value


def _supporting(record: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    facts = record.get("supporting_facts")
    if facts is None:
        return tuple((_text(title), 0) for title in _listed(record.get("supporting_titles") or ()))
    pairs = zip(facts["title"], facts["sent_id"], strict=True) if isinstance(facts, dict) else _listed(facts)
    return tuple((_text(title), _place(index)) for title, index in pairs)


def _place(index: Any) -> int:
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ValueError(f"a sentence's index must be 0 or more, not {index!r}")
    return index
