import subprocess
import sys

import pytest


def run(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [("otel", "opentelemetry", "otel"), ("prometheus", "prometheus_client", "prometheus")],
)
def test_module_without_its_extra_says_what_to_install(module, library, extra):
    ended = run(
        f"import sys; sys.modules[{library!r}] = None; import runledger_runtime.telemetry.{module}"
    )

    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert last.endswith(f"an extra: pip install 'runledger-runtime[{extra}]'")


def test_worker_and_health_server_load_none_of_the_extras():
    ended = run(
        "import sys; from runledger_runtime import HealthServer, Supervisor, run_worker_loop;"
        " print([name for name in ('opentelemetry', 'prometheus_client', 'sqlalchemy')"
        " if name in sys.modules])"
    )

    assert (ended.stdout, ended.stderr) == ("[]\n", "")
