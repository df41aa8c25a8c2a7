"""How many examples properties are tried with, by RUNLEDGER_TEST_SIZE."""

import os

from hypothesis import settings

settings.register_profile("ci", max_examples=30)
settings.register_profile("full", max_examples=200)
settings.load_profile(os.environ.get("RUNLEDGER_TEST_SIZE", "ci"))
