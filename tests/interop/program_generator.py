"""From a seed to a program. The same seed makes the same program, until somebody changes the kinds of steps."""

from random import Random

from tests.interop import index_steps
from tests.interop.data_steps import KINDS, Kind, create
from tests.interop.programs import Program, Step
from tests.interop.table_model import Model

_STEPS_LEAST, _STEPS_MOST = 3, 12


def program(seed: int, *, indexed: bool = False) -> Program:
    random = Random(seed)
    kinds = (*KINDS, *(Kind(*each) for each in index_steps.KINDS)) if indexed else KINDS
    storage_version = random.choice(("2.0", "2.1", "2.2", "2.2"))
    stable, v2_names = random.random() < 0.5, random.random() < 0.85
    model = Model(random, storage_version, stable)
    told = create(model, v2_names)
    steps = [Step(0, "create", told.ours, told.theirs, by_us=random.random() < 0.5)]
    model.remember()
    count = random.randint(_STEPS_LEAST, _STEPS_MOST)
    weights = [kind.weight for kind in kinds]
    while len(steps) <= count:
        model.step = len(steps)
        (kind,) = random.choices(kinds, weights)
        next_told = kind.tell(model)
        if next_told is not None:
            asks = index_steps.questions(model) if indexed else ()
            by_us = random.random() < 0.5
            steps.append(Step(len(steps), kind.name, next_told.ours, next_told.theirs, by_us, asks))
            model.remember()
    return Program(seed, storage_version, stable, v2_names, tuple(steps), indexed)
