"""Where questions come from: HotpotQA's files or its hub, and any JSONL of question, answer and paragraphs."""

from collections.abc import Iterator
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
    return [_question(f"{source}[{i}]", record, {}) for i, record in enumerate(records)]


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
    return [_question(place, record, texts) for place, record in records]


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
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; give a HotpotQA file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}); give a HotpotQA file") from error


def _read_corpus(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise InputError(f"the questions have no context and {path} does not exist; pass the corpus file")
    texts = {}
    for place, record in _json_lines(path):
        texts[_field(place, record, "title", str)] = _field(place, record, "text", str)
    return texts


def _field(place: str, record: Any, name: str, kind: type) -> Any:
    if not isinstance(record, dict):
        raise InputError(f"{place}: must be a JSON object; mend the record")
    value = record.get(name)
    if not isinstance(value, kind):
        raise InputError(f"{place}: field '{name}' must be of type {kind.__name__}; mend the record")
    return value


def _question(place: str, record: Any, texts: dict[str, str]) -> AgentQuestion:
    question = _field(place, record, "question", str).strip()
    answer = _field(place, record, "answer", str)
    try:
        paragraphs = _paragraphs(record, texts)
        supporting = _supporting(record)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{place}: context or supporting facts cannot be used ({error!r}); mend the record") from error
    if not question or not paragraphs:
        raise InputError(f"{place}: needs a question and at least one paragraph; mend the record")
    return AgentQuestion(
        qid=str(record.get("_id") or record.get("id") or place),
        question=question,
        answer=answer,
        type="comparison" if record.get("type") == "comparison" else "bridge",
        level=str(record.get("level") or "unknown"),
        paragraphs=paragraphs,
        supporting=supporting,
        aliases=_texts(place, record, "aliases"),
    )


def _texts(place: str, record: dict[str, Any], name: str) -> tuple[str, ...]:
    values = record.get(name) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError(f"{place}: field '{name}' must be a list of texts; mend the record")
    return tuple(values)


def _paragraphs(record: dict[str, Any], texts: dict[str, str]) -> tuple[Paragraph, ...]:
    context = record.get("context")
    if context is None and "paragraphs" in record:
        return tuple(_paragraph(number, item) for number, item in enumerate(record["paragraphs"]))
    if context is None:
        return tuple(Paragraph(title, (texts[title],)) for title in record["context_titles"] if title in texts)
    pairs = zip(context["title"], context["sentences"], strict=True) if isinstance(context, dict) else context
    return tuple(Paragraph(title, tuple(sentences)) for title, sentences in pairs)


def _paragraph(number: int, item: Any) -> Paragraph:
    """A paragraph of the free form; a bare text has a number for a title."""
    if isinstance(item, str):
        return Paragraph(f"paragraph {number + 1}", (item,))
    return Paragraph(str(item["title"]), (str(item["text"]),))


def _supporting(record: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    facts = record.get("supporting_facts")
    if facts is None:
        return tuple((title, 0) for title in record.get("supporting_titles") or ())
    pairs = zip(facts["title"], facts["sent_id"], strict=True) if isinstance(facts, dict) else facts
    return tuple((title, int(index)) for title, index in pairs)
