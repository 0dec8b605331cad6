"""Bodies of requests and answers, as OpenAPI describes them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from mongoq.data.arguments import queue_name
from mongoq.data.item import State
from mongoq.data.settings import HELP, SETTINGS, QueueSettings, to_stored
from mongoq.web.values import MAX_LISTED, Filter, ItemId, Moment, QueueName, Seconds

ListedState = Literal[State, "live"]
"""State of listed items; ``live`` stands for all that are not processed."""
Reason = Annotated[str | None, Field(description="Reason of their burial, the whole text.")]
ErrorType = Annotated[str | None, Field(description="Type of their errors, such as app.errors.NoCity.")]
Until = Annotated[
    Moment | None, Field(description="Items that came after this time stay: the field until of a dry run's answer.")
]
ScheduleName = Annotated[
    str,
    AfterValidator(lambda name: queue_name(name, "schedule")),
    Field(description="Name of a schedule.", examples=["report"]),
]
Stage = Annotated[str | None, Field(description="Stage of a pipeline that buried them.")]
KNOWN = "An item had the id or the key already."
"""Description of the answer to a push that was made before."""


class Answer(BaseModel):
    """An answer; fields that other programs have stored in an envelope are in it as well."""

    model_config = ConfigDict(extra="allow")


class PermitDocument(Answer):
    """A worker that holds permits of a queue, or asks for some."""

    worker: str
    permits: int = Field(description="Items that it may run at a time; 0 if it only asks.")
    wanted: int = Field(description="Permits that it could use.")
    until: str = Field(description="End of the lease of its permits, or of its request.")


class LimitsDocument(Answer):
    """What is used of the limits of a queue."""

    max_running: int | None = Field(description="Runs at a time, over all workers; null for no limit.")
    rate: str | None = Field(description="Runs that may start in a time, such as 100/m; null for no limit.")
    burst: int | None = Field(description="Runs that may start at once under the rate; null for its default.")
    permits: int = Field(description="Permits that workers hold: items that may run now.")
    holders: list[PermitDocument]
    next_start: str | None = Field(description="Time of the next start under the rate; null if an item may start now.")
    reason: str | None = Field(description="Why no further item starts now; null if the limits let one start.")


class QueueState(Answer):
    """State of a queue: its items by state, and its consumers."""

    queue: str
    at: str = Field(description="Time of the read, by the server's clock.")
    ready: int = Field(description="Items that are due and not reserved.")
    scheduled: int = Field(description="Items that are due later.")
    reserved: int = Field(description="Items under a lease.")
    expired: int = Field(description="Items whose lease has run out; they are due again.")
    blocked: int = Field(description="Items that wait for the ones before them in their sequences.")
    recent: int = Field(description="Items processed in the last minute, of a queue with history.")
    dead: int = Field(description="Live items in its dead queue.")
    at_least: list[str] = Field(description="Names of the counts that ended at a limit: there are at least so many.")
    oldest_due: str | None = Field(description="Time since which the first due item waits.")
    oldest_age_seconds: float | None
    paused: bool
    consumers: int = Field(description="Live workers and running queries of Spark that consume it.")
    dead_queue: str | None
    events: dict[str, int] = Field(description="Numbers of pushes, commits and other events since it was made.")
    limits: LimitsDocument | None = Field(description="What is used of its limits; null if it has none.")


class QueueList(Answer):
    """State of all queues, or of the named ones."""

    queues: list[QueueState]


class ItemDocument(Answer):
    """An item: its envelope, and its payload in relaxed extended JSON."""

    id: Any
    queue: str
    state: str
    payload: Any = Field(None, description="Payload in relaxed extended JSON; absent if only the id is remembered.")
    blocked_by: list[dict[str, Any]] | None = Field(
        None,
        description="Ids and states of the items that a blocked item waits for; only of blocked items. "
        "A dead letter that holds the sequence has the state dead.",
    )
    holds: str | None = Field(None, description="Sequence that a dead letter holds; only of letters that hold one.")


class ItemList(Answer):
    """Items of a queue, and where the list goes on."""

    items: list[ItemDocument]
    next: str | None = Field(description="Cursor of the next answer; null at the end of the list.")
    note: str | None = Field(None, description="Why there are no processed items, and what keeps them from now on.")


class LetterGroup(Answer):
    """Dead letters that died for the same reason, with an error of the same type."""

    number: int
    reason: str | None
    error: str | None
    example: Any = Field(description="Id of the first letter.")
    first: str | None = Field(description="Time of the first burial.")
    last: str | None
    message: Any = Field(None, description="Message of the first letter's error.")


class LetterGroups(Answer):
    """Dead letters by reason and type of error, the largest groups first."""

    queue: str = Field(description="Name of the dead queue.")
    groups: list[LetterGroup]
    more: bool = Field(description="True if the dead queue holds more letters than were grouped.")


class WorkerDocument(Answer):
    """A worker at its last heartbeat."""

    worker: str
    alive: bool
    queues: dict[str, int] = Field(description="Queues it consumes, with the numbers of items that it holds.")
    overdue_seconds: dict[str, float] = Field(description="Queues with a run beyond its time limit, and its length.")


class WorkerList(Answer):
    """Live workers, and workers that ended lately without saying so."""

    workers: list[WorkerDocument]


class BindingList(Answer):
    """Queues that get a copy of each item that is pushed to a topic, by topic."""

    bindings: dict[str, list[str]]


class PipelineList(Answer):
    """Names of the pipelines that the app knows."""

    pipelines: list[str]


class PipelineNode(Answer):
    """A source, a queue or a stage of a pipeline."""

    id: str
    kind: Literal["source", "queue", "stage"]
    name: str
    queue: QueueState | None = Field(description="State of a queue; null if no caller has used it, and for others.")
    failed: int | None = Field(None, description="Failed runs of a stage since its queues were made.")


class PipelineEdge(Answer):
    """A way of items between two nodes."""

    kind: Literal["from", "to", "otherwise", "errors"]
    start: str = Field(description="Id of the node that items come from.")
    end: str
    items: int | None = Field(None, description="Items that wait for the stage or are with it.")
    exact: bool = Field(True, description="False if the count of items ended at a limit.")
    passed: int | None = Field(
        None, description="Items that have gone this way since the queues were made; absent where that is not counted."
    )


class PipelineDocument(Answer):
    """The graph of a pipeline, with the numbers of items on each edge."""

    name: str
    nodes: list[PipelineNode]
    edges: list[PipelineEdge]


class ScheduleDocument(Answer):
    """A schedule, with its next and last ticks."""

    schedule: str
    what: str = Field(description="When it ticks, as a text.")
    queue: str = Field(description="Queue that its items go to.")
    paused: bool
    next: str | None = Field(description="The next tick; null if there is none any more.")
    over: bool = Field(description="True if it never ticks again.")
    timezone: str | None = Field(description="Zone of its cron expression; null for others.")
    next_local: str | None = Field(description="The next tick in that zone, with the offset to UTC.")
    last: str | None = Field(description="The last tick that was made.")
    late: float = Field(description="Seconds since the next tick has been due, from a minute on.")
    unseen: bool = Field(description="True if it belongs to a function that no running code has had for a day.")
    trouble: str | None = Field(description="Why it cannot be read; null if it can.")


class ScheduleList(Answer):
    """All schedules, by name."""

    schedules: list[ScheduleDocument]


class ScheduleRun(Answer):
    """An extra item of a schedule."""

    schedule: str
    queue: str
    id: str


class ScheduleRemoved(Answer):
    """Result of a removal."""

    schedule: str
    removed: bool = Field(description="False if another caller was faster.")


class Mistake(Answer):
    """A call that cannot be carried out, in the form that Ziggurat's users know."""

    error: str | None = None


class HealthDocument(Answer):
    """Whether the server takes writes, and the collection can be used."""

    healthy: bool
    reasons: list[str]
    notes: list[str]


def _setting_fields(seconds: Any, *, required: bool) -> dict[str, Any]:
    """Return the fields of all settings of a queue, for a model in which durations are ``seconds``."""
    made, hints = {}, get_type_hints(QueueSettings)
    for name in SETTINGS:
        kinds = get_args(hints[name]) or (hints[name],)
        kind = hints[name] if timedelta not in kinds else seconds | None if type(None) in kinds else seconds
        default = ... if required else to_stored(getattr(DEFAULTS, name))
        made[name] = kind, Field(default, description=HELP[name])
    return made


DEFAULTS = QueueSettings("")


class SettingsDocument(create_model("_Settings", __base__=Answer, **_setting_fields(float, required=True))):  # type: ignore[misc]
    """Settings of a queue; durations are in seconds."""

    queue: str
    paused: bool
    stored: list[str] = Field(description="Settings that are stored; the others are defaults.")


class Pushed(Answer):
    """An item that was pushed, or the one that was there before."""

    id: str
    new_item: bool = Field(description="False if an item had the id or the key already.")
    queue: str
    new_queue: bool = Field(description="True if no caller had used the queue before.")


class Changed(Answer):
    """Result of a change, or of its dry run."""

    queue: str
    dry_run: bool
    number: int = Field(description="Items that were changed; in a dry run, items that would be.")
    exact: bool = Field(True, description="False if a dry run ended at its limit: there are at least so many.")
    until: str | None = Field(
        None, description="Time of a dry run; with it in the change, items that have come since then stay."
    )
    releases: list[Released] = Field(
        [], description="Sequences that go on without the letters which hold them, the first ones; only in a dry run."
    )


class Released(Answer):
    """A sequence that goes on when the letters which hold it are gone."""

    queue: str
    sequence: str
    items: int = Field(description="Items that wait in it, 10,001 for more.")
    first: Any = Field(description="Id of the item that runs next.")


class Sent(Changed):
    """Result of a replay."""

    to: str | None = Field(description="Target; null for the queues that the letters died in.")
    already: int = Field(0, description="Copies that an earlier replay has pushed.")
    skipped: int = Field(0, description="Letters that a caller holds, or that have gone meanwhile.")
    refused: int = 0
    refusals: list[Refusal] = Field([], description="The first items that could not go.")
    missing: list[str] = Field([], description="Ids that are not there.")
    note: str | None = Field(None, description="Why there are no processed items, and what keeps them from now on.")


class Refusal(Answer):
    """An item that could not go, and why."""

    id: str
    reason: str


class Change(BaseModel):
    """A request that changes something."""

    # A number or a word in place of true would be a mistake that deletes.
    model_config = ConfigDict(extra="forbid", strict=True)


A = TypeVar("A", bound=Change)


def read_action(model: type[A], **fields: Any) -> A:
    """Return the request that a form or a call of another kind stands for, checked as a body is.

    Raises:
        RequestValidationError: a field cannot be used.
    """
    try:
        return model(**fields)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


class Action(Change):
    """A request that changes something."""

    queue: QueueName


class ScheduleAction(Change):
    """A request that changes a schedule."""

    schedule: ScheduleName


class BulkAction(Action):
    """A request that changes several items."""

    limit: Annotated[int | None, Field(ge=1, description="Items, at most, the first ones.")] = None
    dry_run: bool = Field(False, description="Count the items, and change nothing.")


class Push(Action):
    """An item to push."""

    payload: Any = Field(description="Any value of JSON or extended JSON.")
    delay: Seconds | None = Field(None, description="Time until it may be claimed, such as 30 or 30s.")
    when: Moment | None = None
    expires: Seconds | None = Field(None, description="Time within which it must be started, or it does not run.")
    priority: Annotated[int, Field(ge=-100, le=100, description="From -100, first, to 100, last.")] = 0
    key: str | None = Field(None, description="At most one live item of the queue has this key.")
    sequence: str | None = Field(
        None, description="Items of the queue with the same sequence are handed out in the order of their pushes."
    )
    on_duplicate: Literal["raise", "keep", "replace"] = Field("raise", description="What to do if one has it.")
    headers: dict[str, Any] | None = None
    id: ItemId | None = Field(None, description="Id of the item: the same push again adds no second item.")
    once: Seconds | None = Field(None, description="Time for which the id is remembered; default 7 days.")


class Remove(Action):
    """An item to delete."""

    id: ItemId


class Purge(BulkAction):
    """Items to delete."""

    state: State | None = Field(None, description="State of the items; null for all live ones that no caller holds.")
    where: Filter | None = None
    until: Until = None


class DropQueue(Action):
    """A queue to delete, with its history, counters and settings."""

    force: bool = Field(False, description="Delete its live items as well.")
    dry_run: bool = False


class Configure(create_model("_Changes", __base__=Action, **_setting_fields(Seconds, required=False))):  # type: ignore[misc]
    """Settings to change; all others stay."""

    existing: bool = Field(False, description="Apply history to the items in the history as well.")


class LetterChoice(BulkAction):
    """Dead letters: by their ids, or all that match all of the other fields."""

    queue: QueueName = Field(description="Queue that they died in, or the dead queue itself.")
    ids: Annotated[list[ItemId], Field(max_length=MAX_LISTED)] | None = None
    where: Filter | None = None
    stage: Stage = None
    reason: Reason = None
    error: ErrorType = None
    until: Until = None
    exact: bool = Field(False, description="The queue itself holds the letters: the error queue of a pipeline.")

    @property
    def filters(self) -> dict[str, Any]:
        """Arguments that select the letters, but for ``until``."""
        return {name: getattr(self, name) for name in ("ids", "where", "stage", "reason", "error")}

    @property
    def target(self) -> str | None:
        """Queue that the letters go to; ``None`` for the queues that they died in, and for a deletion."""
        return getattr(self, "to", None)


class ReplayLetters(LetterChoice):
    """Letters to send back to the queues that they died in, or to another one."""

    to: QueueName | None = None


class MoveLetters(LetterChoice):
    """Letters to move to another queue."""

    to: QueueName


class ReplayHistory(BulkAction):
    """Processed items to push copies of: by their ids, or of a time and by a filter."""

    ids: Annotated[list[ItemId], Field(max_length=MAX_LISTED)] | None = None
    since: Moment | None = None
    until: Moment | None = None
    where: Filter | None = None
    to: QueueName | None = Field(None, description="Queue of the copies; null for the same queue.")
    label: str = Field("", description="Name of this replay: with another one, the same items are copied again.")
    payload: Any = Field(None, description="Payload of the copy, instead of the original's; for one id only.")
