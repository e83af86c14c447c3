"""A generated multi-hop world: invented people, places, works and organisations, and questions over them.

Every question gets a small piece of world of its own, made from (seed, index) alone: any number of questions streams in
constant memory, and the same question comes out whichever process makes it. Facts about an entity are invented when
they are first needed. Distractors are near-duplicates of what the question names, namesakes, relatives of what it
passes through, and strangers.
"""

from collections.abc import Iterator

from observer_pipeline.agent.questions import AgentQuestion, Fact
from observer_pipeline.agent.world_asks import PREAMBLES
from observer_pipeline.agent.world_names import with_articles
from observer_pipeline.agent.world_piece import Piece
from observer_pipeline.agent.world_shapes import SHAPES

_WITH_PREAMBLE = 0.12


def generate_world(n: int, seed: int, *, first: int = 0) -> Iterator[AgentQuestion]:
    """The questions with indices from `first` to below `n` of the world with this seed."""
    return (world_question(seed, index) for index in range(first, n))


def world_question(seed: int, index: int) -> AgentQuestion:
    """The question with this index in the world with this seed."""
    piece = Piece(seed, index)
    shape = piece.rng.choices(list(SHAPES), weights=list(SHAPES.values()))[0](piece)
    piece.distract()
    made = [piece.paragraph(entity) for entity in piece.entities]
    titles = {entity: paragraph.title for entity, (paragraph, _) in zip(piece.entities, made, strict=True)}
    supporting = []
    for entity, attribute, _ in shape.facts:
        _, where = made[piece.entities.index(entity)]
        supporting.append((titles[entity], where["birth_date" if attribute == "birth_year" else attribute]))
    paragraphs = [paragraph for paragraph, _ in made]
    piece.rng.shuffle(paragraphs)
    asked = with_articles(shape.question)
    if piece.rng.random() < _WITH_PREAMBLE:
        asked = piece.rng.choice(PREAMBLES).format(q=asked)
    return AgentQuestion(
        qid=f"world-{seed}-{index}",
        question=asked,
        answer=shape.answer,
        type=shape.type,
        level=shape.level,
        paragraphs=tuple(paragraphs),
        supporting=tuple(dict.fromkeys(supporting)),
        aliases=shape.aliases,
        facts=tuple(
            Fact(titles[e], piece.text(e, "birth_date" if a == "birth_year" else a), alternatives)
            for e, a, alternatives in shape.facts
        ),
        skipped_hop=shape.skipped_hop and with_articles(shape.skipped_hop),
        sibling=shape.sibling and with_articles(shape.sibling),
    )
