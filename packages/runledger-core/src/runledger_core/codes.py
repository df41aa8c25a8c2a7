"""Stable codes of the errors that this distribution raises or stores itself."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

INPUT_BLANK: Final = "input.blank"
INPUT_INVALID_CHARACTERS: Final = "input.invalid_characters"
INPUT_JSON_INVALID_KEY: Final = "input.json_invalid_key"
INPUT_JSON_INVALID_TEXT: Final = "input.json_invalid_text"
INPUT_JSON_MALFORMED: Final = "input.json_malformed"
INPUT_JSON_NOT_FINITE: Final = "input.json_not_finite"
INPUT_JSON_NUMBER_TOO_LONG: Final = "input.json_number_too_long"
INPUT_JSON_TOO_DEEP: Final = "input.json_too_deep"
INPUT_JSON_TOO_LARGE: Final = "input.json_too_large"
INPUT_JSON_UNSUPPORTED_TYPE: Final = "input.json_unsupported_type"
INPUT_NAIVE_TIMESTAMP: Final = "input.naive_timestamp"
INPUT_OUT_OF_RANGE: Final = "input.out_of_range"
INPUT_TOO_LONG: Final = "input.too_long"
INPUT_WRONG_TYPE: Final = "input.wrong_type"
JOB_FAILED: Final = "job.failed"
JOB_SCHEDULE_INVALID_CRON: Final = "job_schedule.invalid_cron"
JOB_SCHEDULE_INVALID_JITTER: Final = "job_schedule.invalid_jitter"
JOB_SCHEDULE_INVALID_NAME: Final = "job_schedule.invalid_name"
WORKFLOW_APPEND_MUTATION_KEY_BLANK: Final = "workflow.append_mutation_key_blank"
WORKFLOW_DEPENDENCY_UNSATISFIED: Final = "workflow.dependency_unsatisfied"
WORKFLOW_EXTERNAL_STEP_INVALID_TERMINAL_STATUS: Final = (
    "workflow.external_step_invalid_terminal_status"
)
WORKFLOW_EXTERNAL_STEP_OUTPUT_INVALID_STATUS: Final = "workflow.external_step_output_invalid_status"
WORKFLOW_INTERNAL_STATE: Final = "workflow.internal_state"
WORKFLOW_INVALID_DAG_CYCLE: Final = "workflow.invalid_dag_cycle"
WORKFLOW_INVALID_DAG_DEPENDENCY_COUNT_OVERFLOW: Final = (
    "workflow.invalid_dag_dependency_count_overflow"
)
WORKFLOW_INVALID_DAG_DEPENDENCY_STEP_KEY_BLANK: Final = (
    "workflow.invalid_dag_dependency_step_key_blank"
)
WORKFLOW_INVALID_DAG_DUPLICATE_DEPENDENCY: Final = "workflow.invalid_dag_duplicate_dependency"
WORKFLOW_INVALID_DAG_DUPLICATE_STEP_KEY: Final = "workflow.invalid_dag_duplicate_step_key"
WORKFLOW_INVALID_DAG_EMPTY: Final = "workflow.invalid_dag_empty"
WORKFLOW_INVALID_DAG_EXTERNAL_STEP_JOB_TYPE_NOT_ALLOWED: Final = (
    "workflow.invalid_dag_external_step_job_type_not_allowed"
)
WORKFLOW_INVALID_DAG_EXTERNAL_STEP_QUEUE_SETTINGS_NOT_ALLOWED: Final = (
    "workflow.invalid_dag_external_step_queue_settings_not_allowed"
)
WORKFLOW_INVALID_DAG_IDEMPOTENCY_KEY_BLANK: Final = "workflow.invalid_dag_idempotency_key_blank"
WORKFLOW_INVALID_DAG_JOB_TYPE_BLANK: Final = "workflow.invalid_dag_job_type_blank"
WORKFLOW_INVALID_DAG_MISSING_DEPENDENCY: Final = "workflow.invalid_dag_missing_dependency"
WORKFLOW_INVALID_DAG_RESULT_STEP_KEY_BLANK: Final = "workflow.invalid_dag_result_step_key_blank"
WORKFLOW_INVALID_DAG_SELF_DEPENDENCY: Final = "workflow.invalid_dag_self_dependency"
WORKFLOW_INVALID_DAG_STEP_KEY_BLANK: Final = "workflow.invalid_dag_step_key_blank"
WORKFLOW_INVALID_DAG_STEP_MAX_ATTEMPTS_NON_POSITIVE: Final = (
    "workflow.invalid_dag_step_max_attempts_non_positive"
)
WORKFLOW_INVALID_DAG_STEP_TIMEOUT_SECONDS_NON_POSITIVE: Final = (
    "workflow.invalid_dag_step_timeout_seconds_non_positive"
)
WORKFLOW_INVALID_DAG_TOO_LARGE: Final = "workflow.invalid_dag_too_large"
WORKFLOW_INVALID_DAG_UNKNOWN_RESULT_STEP_KEY: Final = "workflow.invalid_dag_unknown_result_step_key"
WORKFLOW_INVALID_DAG_UNKNOWN_STEP_KEY: Final = "workflow.invalid_dag_unknown_step_key"
WORKFLOW_INVALID_DAG_WORKFLOW_TYPE_BLANK: Final = "workflow.invalid_dag_workflow_type_blank"

MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        INPUT_BLANK: "The text is empty or holds only white space.",
        INPUT_INVALID_CHARACTERS: "The text holds NUL, a lone surrogate, or what is refused there.",
        INPUT_JSON_INVALID_KEY: "An object key is not a string.",
        INPUT_JSON_INVALID_TEXT: "A string or a key inside JSON holds NUL or a lone surrogate.",
        INPUT_JSON_MALFORMED: "The text is not JSON.",
        INPUT_JSON_NOT_FINITE: "A number is NaN, infinite or too large for a float.",
        INPUT_JSON_NUMBER_TOO_LONG: "An integer has too many decimal digits.",
        INPUT_JSON_TOO_DEEP: "Lists and objects are nested too deeply, or contain themselves.",
        INPUT_JSON_TOO_LARGE: "The encoded JSON has more bytes than allowed.",
        INPUT_JSON_UNSUPPORTED_TYPE: "A value has a type that JSON cannot hold.",
        INPUT_NAIVE_TIMESTAMP: "The date and time carries no UTC offset.",
        INPUT_OUT_OF_RANGE: "The value is not one of those allowed.",
        INPUT_TOO_LONG: "The text has more characters or bytes than allowed.",
        INPUT_WRONG_TYPE: "The value has the wrong Python type.",
        JOB_FAILED: "A handler reported a failure and left its code blank.",
        JOB_SCHEDULE_INVALID_CRON: "The text is no cron expression, or its days never come.",
        JOB_SCHEDULE_INVALID_JITTER: "The jitter of a schedule is not 0 to 86,400 seconds.",
        JOB_SCHEDULE_INVALID_NAME: (
            "The name of a schedule is blank, too long, or has outer white space."
        ),
        WORKFLOW_APPEND_MUTATION_KEY_BLANK: "The mutation key of an append is blank.",
        WORKFLOW_DEPENDENCY_UNSATISFIED: "A prerequisite that had to succeed did not.",
        WORKFLOW_EXTERNAL_STEP_INVALID_TERMINAL_STATUS: (
            "A gate is completed as SUCCEEDED, FAILED or CANCELED."
        ),
        WORKFLOW_EXTERNAL_STEP_OUTPUT_INVALID_STATUS: "Only a gate that succeeded has an output.",
        WORKFLOW_INTERNAL_STATE: "What is stored of a run contradicts itself.",
        WORKFLOW_INVALID_DAG_CYCLE: "Steps wait for each other; `cycle` names them.",
        WORKFLOW_INVALID_DAG_DEPENDENCY_COUNT_OVERFLOW: "A step has too many prerequisites.",
        WORKFLOW_INVALID_DAG_DEPENDENCY_STEP_KEY_BLANK: "The key of a prerequisite is blank.",
        WORKFLOW_INVALID_DAG_DUPLICATE_DEPENDENCY: "A step names a prerequisite twice.",
        WORKFLOW_INVALID_DAG_DUPLICATE_STEP_KEY: "Two steps of a run have the same key.",
        WORKFLOW_INVALID_DAG_EMPTY: "A run, or an append, has no steps.",
        WORKFLOW_INVALID_DAG_EXTERNAL_STEP_JOB_TYPE_NOT_ALLOWED: "A gate has a job type.",
        WORKFLOW_INVALID_DAG_EXTERNAL_STEP_QUEUE_SETTINGS_NOT_ALLOWED: (
            "A gate has a priority, attempts, a timeout or a stage."
        ),
        WORKFLOW_INVALID_DAG_IDEMPOTENCY_KEY_BLANK: "The idempotency key of a run is blank.",
        WORKFLOW_INVALID_DAG_JOB_TYPE_BLANK: "A step that makes a job has no job type.",
        WORKFLOW_INVALID_DAG_MISSING_DEPENDENCY: "A step waits for one that does not exist.",
        WORKFLOW_INVALID_DAG_RESULT_STEP_KEY_BLANK: "The key of the result step is blank.",
        WORKFLOW_INVALID_DAG_SELF_DEPENDENCY: "A step waits for itself.",
        WORKFLOW_INVALID_DAG_STEP_KEY_BLANK: "The key of a step is blank.",
        WORKFLOW_INVALID_DAG_STEP_MAX_ATTEMPTS_NON_POSITIVE: "A step allows no attempt.",
        WORKFLOW_INVALID_DAG_STEP_TIMEOUT_SECONDS_NON_POSITIVE: "A step allows no time.",
        WORKFLOW_INVALID_DAG_TOO_LARGE: "The payloads of all steps are too large together.",
        WORKFLOW_INVALID_DAG_UNKNOWN_RESULT_STEP_KEY: "The result step is none of the steps.",
        WORKFLOW_INVALID_DAG_UNKNOWN_STEP_KEY: "A step got prerequisites before it was added.",
        WORKFLOW_INVALID_DAG_WORKFLOW_TYPE_BLANK: "The type of a run is blank.",
    }
)
"""What each code means, for documentation and for tests that must know all codes."""

NEXT_STEPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        INPUT_JSON_NUMBER_TOO_LONG: "Pass the number as text.",
        INPUT_JSON_TOO_DEEP: "Flatten the value, or call `raise_limits` in every process.",
        INPUT_JSON_TOO_LARGE: (
            "Keep the value elsewhere and pass a reference, or call `raise_limits` in every"
            " process."
        ),
        INPUT_JSON_UNSUPPORTED_TYPE: "Convert the value first; `field` is its JSON path.",
        INPUT_NAIVE_TIMESTAMP: "Pass an aware `datetime`, such as `datetime.now(UTC)`.",
        INPUT_TOO_LONG: "Shorten the text, or call `raise_limits` in every process.",
        JOB_FAILED: "Give the `JobFailure` a code that operators can tell from others.",
        JOB_SCHEDULE_INVALID_CRON: "Write what the schedules guide describes.",
        WORKFLOW_DEPENDENCY_UNSATISFIED: "Look at the steps before it: one failed or was canceled.",
        WORKFLOW_INTERNAL_STATE: "Verify the run, whose rows were changed around the API.",
        WORKFLOW_INVALID_DAG_TOO_LARGE: "Keep the values elsewhere and pass references.",
    }
)
"""What to do about a code, where its category does not say enough."""
