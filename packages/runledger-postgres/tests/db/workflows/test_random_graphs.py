"""Random graphs driven to their end through storage, compared after each write with their edges."""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from runledger_core.workflows import WorkflowStepEnqueue

from .conftest import Workflows
from .graphs import graphs
from .lives import Life

IS_FULL = os.environ.get("RUNLEDGER_TEST_SIZE") == "full"


def live(workflows: Workflows, *, examples: int, most_steps: int, phases: Sequence[Phase]) -> None:
    @settings(
        max_examples=examples,
        phases=phases,
        deadline=None,
        derandomize=not IS_FULL,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(
        st.lists(graphs(most=most_steps), min_size=1, max_size=3),
        st.randoms(use_true_random=True),
        st.sampled_from([0.0, 0.1, 0.4]),
    )
    def run(all_steps: list[list[WorkflowStepEnqueue]], chance: Random, failing: float) -> None:
        life = Life(workflows, chance, failing)
        for steps in all_steps:
            life.begin(steps)
        life.run_to_the_end()

    run()


@pytest.mark.core
def test_small_graphs_end_as_their_edges_say(workflows: Workflows):
    live(workflows, examples=10, most_steps=8, phases=tuple(Phase))


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_random_graphs_end_as_their_edges_say(workflows: Workflows):
    # To make a large one smaller would take minutes; the seed and the graph are printed.
    live(workflows, examples=3_000 if IS_FULL else 15, most_steps=60, phases=[Phase.generate])
