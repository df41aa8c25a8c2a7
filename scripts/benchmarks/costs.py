"""What each index and row write costs: the same work with one of them left out.

Experiments on the schema, not proposals: every index named here has a statement that needs it.
"""

from __future__ import annotations

from typing import Final, LiteralString

from .contenders import ENQUEUE_MANY, WORKER_100
from .model import Contender, Figure, Fill

_WITHOUT_INDEX: Final[dict[str, LiteralString]] = {
    "idx_job_queue_leased": "DROP INDEX runledger.idx_job_queue_leased",
    "idx_job_queue_rare": "DROP INDEX runledger.idx_job_queue_rare",
    "uq_job_queue_type_idempotency_org": "DROP INDEX runledger.uq_job_queue_type_idempotency_org",
    "uq_job_queue_type_idempotency_global": (
        "DROP INDEX runledger.uq_job_queue_type_idempotency_global"
    ),
    "uq_job_queue_schedule_fire": "DROP INDEX runledger.uq_job_queue_schedule_fire",
    "idx_job_queue_workflow_run": "DROP INDEX runledger.idx_job_queue_workflow_run",
    "idx_job_queue_missing_enqueue_request_snapshot": (
        "DROP INDEX runledger.idx_job_queue_missing_enqueue_request_snapshot"
    ),
    "checks of job_queue": """
        DO $$
        DECLARE
            name text;
        BEGIN
            FOR name IN
                SELECT conname FROM pg_constraint
                WHERE conrelid = 'runledger.job_queue'::regclass AND contype = 'c'
            LOOP
                EXECUTE format('ALTER TABLE runledger.job_queue DROP CONSTRAINT %%I', name);
            END LOOP;
        END
        $$
    """,
}
# The claim needs these: only the enqueue can do without.
_OF_THE_CLAIM: Final[dict[str, LiteralString]] = {
    "idx_job_queue_ready": "DROP INDEX runledger.idx_job_queue_ready",
    "idx_job_queue_waiting": "DROP INDEX runledger.idx_job_queue_waiting",
}
_WITHOUT_ATTEMPT: Final[dict[str, LiteralString]] = {
    "brin_job_attempts_finished": "DROP INDEX runledger.brin_job_attempts_finished",
    "job_attempts_pkey": "ALTER TABLE runledger.job_attempts DROP CONSTRAINT job_attempts_pkey",
    "WAL of job_attempts": "ALTER TABLE runledger.job_attempts SET UNLOGGED",
    # The trigger itself takes time, so a little more would be saved.
    "rows of job_attempts": """
        CREATE FUNCTION runledger.leave_out() RETURNS trigger LANGUAGE plpgsql
            AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER leave_out BEFORE INSERT ON runledger.job_attempts
            FOR EACH ROW EXECUTE FUNCTION runledger.leave_out()
    """,
}


def _figure(name: str, statement: LiteralString, full: Contender, kind: str) -> Figure:
    fill = Fill(
        name=f"{kind}_{len(name)}_{name}"[:40].replace(" ", "_").lower(),
        # Last: filling would need what is dropped for nothing else.
        statements=(*full.fill.statements, statement),
        rows=full.fill.rows,
    )
    return Figure(
        name=f"{kind}-without-{name.replace(' ', '-')}",
        group=f"costs-{kind}",
        title=f"{kind} without {name}, to all",
        ours=Contender(
            name=f"{full.name}, without {name}",
            clients=full.clients,
            fill=fill,
        ),
        baseline=full,
    )


COSTS: Final = (
    *(
        _figure(name, statement, ENQUEUE_MANY, "enqueue")
        for name, statement in (_OF_THE_CLAIM | _WITHOUT_INDEX).items()
    ),
    *(
        _figure(name, statement, WORKER_100, "drain")
        for name, statement in (_WITHOUT_INDEX | _WITHOUT_ATTEMPT).items()
    ),
)
