-- Which migrations this database has. The runner writes the rows, in the same transaction.

CREATE TABLE runledger.runledger_migration_history (
    version int8 PRIMARY KEY,
    name text NOT NULL,
    sha256 text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
