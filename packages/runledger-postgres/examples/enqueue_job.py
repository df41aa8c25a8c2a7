"""Enqueue a job in the transaction of the order that it is about.

Run it against a database of yours; it migrates and makes a table `example_orders`:

    DATABASE_URL=postgresql://... python enqueue_job.py
"""

from runledger_core import JobDefinitionSpec, JobEnqueue
from runledger_postgres import connect_pool, enqueue_job, migrate, upsert_job_definition

CREATE_ORDERS = """
CREATE TABLE IF NOT EXISTS example_orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL
)
"""


def main() -> None:
    """Place an order twice over, as a nervous client does."""
    with connect_pool() as pool:  # DATABASE_URL
        migrate(pool)
        # The catalog of a worker does this at its start; an enqueue needs the type defined.
        upsert_job_definition(pool, JobDefinitionSpec("example.confirm_order", max_attempts=5))
        with pool.connection() as connection:
            connection.execute(CREATE_ORDERS)

        with pool.connection() as connection, connection.transaction():
            row = connection.execute(
                "INSERT INTO example_orders (customer) VALUES ('customer-17') RETURNING id"
            ).fetchone()
            order_id = row[0] if row else None
            # Joins the transaction: the job exists if and only if the order does.
            request = JobEnqueue(
                "example.confirm_order",
                {"order_id": order_id, "to": "ops@example.com"},
                idempotency_key=f"confirm:{order_id}",
            )
            job = enqueue_job(connection, request)
        print(f"order {order_id}: job {job.id} {job.disposition}")

        # On a pool it has a transaction of its own. The key makes a repeat harmless.
        again = enqueue_job(pool, request)
        print(f"order {order_id}: job {again.id} {again.disposition}")


if __name__ == "__main__":
    main()
