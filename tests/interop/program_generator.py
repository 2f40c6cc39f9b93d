"""Program generator: turns a seed into a program.

A seed makes the same program until the step generators change.
"""

from random import Random

from tests.interop import index_steps
from tests.interop.data_steps import STEP_GENERATORS, StepGenerator, create
from tests.interop.programs import Program, Step
from tests.interop.table_model import TableModel

_STEPS_MIN, _STEPS_MAX = 3, 12


def generate_program(seed: int, *, with_indices: bool = False) -> Program:
    random = Random(seed)
    generators = STEP_GENERATORS
    if with_indices:
        generators += tuple(StepGenerator(*generator) for generator in index_steps.STEP_GENERATORS)
    storage_version = random.choice(("2.0", "2.1", "2.2", "2.2"))
    stable_row_ids, v2_names = random.random() < 0.5, random.random() < 0.85
    model = TableModel(random, storage_version, stable_row_ids)
    creation = create(model, v2_names)
    steps = [Step(0, "create", creation.ours, creation.theirs, ours_in_mixed=random.random() < 0.5)]
    model.save_step()
    count = random.randint(_STEPS_MIN, _STEPS_MAX)
    weights = [generator.weight for generator in generators]
    while len(steps) <= count:
        model.step = len(steps)
        (generator,) = random.choices(generators, weights)
        statements = generator.generate(model)
        if statements is not None:
            conditions = index_steps.generate_conditions(model) if with_indices else ()
            ours_in_mixed = random.random() < 0.5
            steps.append(
                Step(len(steps), generator.name, statements.ours, statements.theirs, ours_in_mixed, conditions)
            )
            model.save_step()
    return Program(seed, storage_version, stable_row_ids, v2_names, tuple(steps), with_indices)
