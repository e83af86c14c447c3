"""The test agent: BM25 over many paragraphs against other libraries, and runs a minute against the bare agent loop.

    python benchmarks/agent.py bm25 --paragraphs 1000000      # with `uv run --with tantivy`, Tantivy is measured too
    python benchmarks/agent.py runs --questions 200

Both print wall and core seconds: on a machine that does other work too, only the latter mean anything.
"""

import argparse
import asyncio
import logging
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from observer_pipeline.agent.questions import Paragraph

VOCABULARY = 60_000
WORDS = 60
QUERIES = 200
ROUNDS = 3
K = 2


@dataclass
class Took:
    """Wall and core seconds of this process and the children it has waited for."""

    wall: float = 0.0
    core: float = 0.0


@contextmanager
def measured() -> Iterator[Took]:
    took = Took()
    began, used = time.perf_counter(), _core_seconds()
    yield took
    took.wall, took.core = time.perf_counter() - began, _core_seconds() - used


def _core_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def made_up(n: int) -> tuple[list[Paragraph], list[str]]:
    """Paragraphs of about sixty words, Zipf-distributed as in language, and queries out of them."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(VOCABULARY)]
    weights = [1 / (rank + 10) for rank in range(VOCABULARY)]
    stock = rng.choices(words, weights, k=4_000_000)
    paragraphs = []
    for number in range(n):
        start = rng.randrange(len(stock) - WORDS)
        title = f"{words[number % VOCABULARY].capitalize()} {words[-1 - number // VOCABULARY].capitalize()}"
        paragraphs.append(Paragraph(title, (" ".join(stock[start : start + rng.randint(40, 60)]),)))
    chosen = rng.sample(paragraphs, QUERIES)
    return paragraphs, [f"{p.title} {' '.join(p.text.split()[5:8])}" for p in chosen]


def _ours(paragraphs: list[Paragraph]) -> Callable[[str], Any]:
    from observer_pipeline.agent.tools import ParagraphIndex

    index = ParagraphIndex(paragraphs)
    return lambda query: [page.title for page in index.search(query, K)]


def _bm25s(paragraphs: list[Paragraph]) -> Callable[[str], Any]:
    import bm25s

    index = bm25s.BM25()
    index.index(bm25s.tokenize([f"{p.title} {p.text}" for p in paragraphs], show_progress=False), show_progress=False)

    def search(query: str) -> list[str]:
        found, _ = index.retrieve(bm25s.tokenize([query], show_progress=False), k=K, show_progress=False)
        return [paragraphs[i].title for i in found[0]]

    return search


def _tantivy(paragraphs: list[Paragraph]) -> Callable[[str], Any]:
    import tantivy  # pyright: ignore[reportMissingImports]

    schema = tantivy.SchemaBuilder().add_text_field("title", stored=True).add_text_field("text").build()
    index = tantivy.Index(schema)
    writer = index.writer(512_000_000, 1)
    for page in paragraphs:
        writer.add_document(tantivy.Document(title=[page.title], text=[f"{page.title} {page.text}"]))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()

    def search(query: str) -> list[str]:
        hits = searcher.search(index.parse_query(query, ["text"]), K).hits
        return [searcher.doc(address)["title"][0] for _, address in hits]

    return search


def bm25(paragraphs: int) -> None:
    """Build an index with each library that is installed, then ask them in alternating rounds."""
    pages, queries = made_up(paragraphs)
    print(f"{paragraphs:,} paragraphs, {QUERIES} queries, best {K}; {_peak_mb():.0f} MB before any index")
    searches: dict[str, Callable[[str], Any]] = {}
    built: dict[str, Took] = {}
    for name, build in (("ours", _ours), ("bm25s", _bm25s), ("tantivy", _tantivy)):
        with suppress(ModuleNotFoundError):
            build(pages[:100])(queries[0])  # imports and what is compiled on first use
            with measured() as built[name]:
                searches[name] = build(pages)
            print(
                f"{name:8} build {built[name].core:7.1f} core-s ({built[name].wall:.1f} s)   peak {_peak_mb():.0f} MB"
            )
    built = {name: built[name] for name in searches}
    answers = {name: [search(query) for query in queries] for name, search in searches.items()}
    rounds: dict[str, list[float]] = {name: [] for name in searches}
    for _ in range(ROUNDS):
        for name, search in searches.items():
            with measured() as asked:
                for query in queries:
                    search(query)
            rounds[name].append(asked.core / QUERIES * 1000)
    firsts = [found[0] for found in answers["ours"]]
    for name in searches:
        same = sum(bool(one) and one[0] == first for one, first in zip(answers[name], firsts, strict=True))
        print(
            f"{name:8} query {median(rounds[name]):7.2f} core-ms, best paragraph as ours in {same} of {QUERIES}; "
            f"ours / {name}: build {built['ours'].core / built[name].core:.2f}, "
            f"query {median(rounds['ours']) / median(rounds[name]):.2f}"
        )


def runs(questions: int) -> None:
    """The bare agent loop, the loop with its spans, and the whole generator."""
    from observer_pipeline.agent.faults import FaultPlan
    from observer_pipeline.agent.generate import GenerateOptions, generate_into
    from observer_pipeline.agent.labeled_run import run_question
    from observer_pipeline.agent.tracing import RunSpans, install_tracing
    from observer_pipeline.agent.world import generate_world

    logging.getLogger("google_adk").setLevel(logging.CRITICAL)
    asked = list(generate_world(questions, 0))
    options = GenerateOptions(questions)

    async def loop() -> None:
        for question in asked:
            await run_question(question, options, None)

    asyncio.run(run_question(asked[0], options, None))  # imports and caches
    with measured() as bare:
        asyncio.run(loop())
    install_tracing(service_name="benchmark", project="benchmark", processors=[RunSpans()])
    with measured() as traced:
        asyncio.run(loop())
    rows = [("bare agent loop", bare), ("with spans", traced)]
    for workers in (1, 2):
        batch = GenerateOptions(questions, faults=FaultPlan.parse("all"), workers=workers)
        with tempfile.TemporaryDirectory() as folder, measured() as whole:
            generate_into(Path(folder) / "out", batch, spans=True)
        rows.append((f"generate, {workers} worker{'s' if workers > 1 else ''}", whole))
    for name, took in rows:
        print(
            f"{name:20} {took.core / questions * 1000:6.1f} core-ms a run ({took.core / bare.core:.2f} of the bare's)"
            f"   {questions / took.wall * 60:7.0f} runs a minute ({bare.wall / took.wall:.2f}; {took.wall:.1f} s)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("bm25").add_argument("--paragraphs", type=int, default=1_000_000)
    commands.add_parser("runs").add_argument("--questions", type=int, default=200)
    given = parser.parse_args()
    if given.command == "bm25":
        bm25(given.paragraphs)
    else:
        runs(given.questions)


if __name__ == "__main__":
    main()
